package etcdlock

import (
	"context"
	"net"

	"github.com/distlock/distlock/internal/netaddr"
	"google.golang.org/grpc/credentials"
)

// freshTLS reads certificates anew for each connection. gRPC replaces the ServerName of a tls.Config by the address, and
// freshTLS sets it again.
type freshTLS struct {
	credentials.TransportCredentials // for what both sides of a connection have in common
	certificates                     *netaddr.Certificates
}

func newTLS(c *netaddr.Certificates) credentials.TransportCredentials {
	return freshTLS{credentials.NewTLS(nil), c}
}

func (t freshTLS) ClientHandshake(ctx context.Context, host string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config := t.certificates.Config()
	if config.ServerName != "" {
		host = config.ServerName
	}
	return credentials.NewTLS(config).ClientHandshake(ctx, host, c)
}

func (t freshTLS) Clone() credentials.TransportCredentials { return t }
