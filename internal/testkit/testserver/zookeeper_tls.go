package testserver

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// zooKeeperTLS is how a server speaks TLS.
type zooKeeperTLS struct {
	port   int
	cert   string // file
	config *tls.Config
}

// SecureAddr is the host and port that speaks TLS.
func (s *ZooKeeperServer) SecureAddr() string { return loopback(s.tls.port) }

// TLSConfig is how clients reach SecureAddr.
func (s *ZooKeeperServer) TLSConfig() *tls.Config { return s.tls.config.Clone() }

// speaks succeeds if the second port is open, which the server sees to last.
func (t *zooKeeperTLS) speaks() error {
	if t == nil {
		return nil
	}
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: pollTimeout}, "tcp", loopback(t.port), t.config)
	if err != nil {
		return err
	}
	return c.Close()
}

// useTLS is the lines of the configuration that give the server a port with TLS.
func (s *ZooKeeperServer) useTLS() ([]string, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	own := ownCertificate()
	cert, _, err := own.write(s.dir)
	if err != nil {
		return nil, err
	}
	store := filepath.Join(s.dir, "store.pem")
	if err := os.WriteFile(store, append(own.key, own.cert...), 0o600); err != nil {
		return nil, err
	}
	s.tls = &zooKeeperTLS{port: port, cert: cert, config: own.trust()}
	return []string{
		fmt.Sprint("secureClientPort=", port),
		"secureClientPortAddress=127.0.0.1",
		"serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
		"ssl.keyStore.location=" + store,
		"ssl.trustStore.location=" + cert,
		"ssl.clientAuth=none",
	}, nil
}
