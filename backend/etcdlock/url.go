package etcdlock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/netaddr"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
)

// urlConfig is what a URL says: where servers are, and how to use them.
type urlConfig struct {
	scheme         string
	addrs          []string
	user, password string
	tls            *tls.Config // nil: none
	serverName     string      // that certificates are for; empty: that of the address
	timeout        time.Duration
	opts           *Options
}

// schemes are those that Open knows.
var schemes = []string{"etcd", "etcds"}

const defaultPort = "2379"

// parseURL says where the servers are and how to use them.
func parseURL(u *url.URL) (*urlConfig, error) {
	addrs, err := netaddr.Of(u, defaultPort)
	if err != nil {
		return nil, err
	}
	p := driver.NewParams(u)
	t := &urlConfig{scheme: u.Scheme, addrs: addrs, user: u.User.Username(), timeout: p.Duration("timeout", defaultTimeout)}
	t.password, _ = u.User.Password()
	if (t.user == "") != (t.password == "") {
		return nil, fmt.Errorf("%w: want a user and a password, or neither, as in etcd://user:password@host; etcd knows the user of a certificate by itself", driver.ErrInvalid)
	}
	if u.Scheme == "etcds" {
		t.tls, err = netaddr.TLS(p)
		t.serverName = p.String("servername", "")
	} else if err := netaddr.NoTLS(u, "etcds", "servername"); err != nil {
		return nil, err
	}
	t.opts = &Options{Prefix: folderPrefix(u.Path)}
	t.opts.Name = clusterName(t.addrs, t.opts.Prefix)
	return t, errors.Join(err, p.Err())
}

// folderPrefix is a path as a folder of keys.
func folderPrefix(path string) string {
	p := strings.TrimPrefix(path, "/")
	if p == "" || strings.HasSuffix(p, "/") {
		return p
	}
	return p + "/"
}

// clusterName is the same in whatever order somebody wrote the hosts, and with TLS or without.
func clusterName(addrs []string, prefix string) string {
	return "etcd://" + netaddr.Listed(addrs) + "/" + prefix
}

// endpoints are the addresses in the client's words.
func (t *urlConfig) endpoints() []string {
	scheme := "http://"
	if t.tls != nil {
		scheme = "https://"
	}
	var list []string
	for _, addr := range t.addrs {
		list = append(list, scheme+addr)
	}
	return list
}

// How soon a connection is noticed that swallows all it is given. gRPC asks after ten
// seconds at the earliest, and servers want to be asked no sooner than after five; what
// was sent and is not acknowledged by the server's system ends it sooner.
const (
	keepAliveTime    = 10 * time.Second
	keepAliveTimeout = 3 * time.Second
)

// config is the client's. Whoever is down is tried again soon: gRPC's own pauses grow to
// two minutes.
func (t *urlConfig) config(ctx context.Context) clientv3.Config {
	redial := backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second}
	c := clientv3.Config{
		Endpoints: t.endpoints(), Username: t.user, Password: t.password, TLS: t.tls,
		DialTimeout: t.timeout, DialKeepAliveTime: keepAliveTime, DialKeepAliveTimeout: keepAliveTimeout,
		Context: ctx, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{Backoff: redial, MinConnectTimeout: t.timeout})},
	}
	if t.user != "" {
		c.DialOptions = append(c.DialOptions, grpc.WithChainUnaryInterceptor(t.loginAfresh))
	}
	if t.serverName != "" {
		own := &serverNameCreds{credentials.NewTLS(t.tls), t.serverName}
		c.DialOptions = append(c.DialOptions, grpc.WithTransportCredentials(own))
	}
	return c
}

// serverNameCreds wants every server to show a certificate for one name. The ServerName in a
// tls.Config is not for that: gRPC replaces it by the address.
type serverNameCreds struct {
	credentials.TransportCredentials
	name string
}

func (n *serverNameCreds) ClientHandshake(ctx context.Context, _ string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return n.TransportCredentials.ClientHandshake(ctx, n.name, c)
}

func (n *serverNameCreds) Clone() credentials.TransportCredentials {
	return &serverNameCreds{n.TransportCredentials.Clone(), n.name}
}
