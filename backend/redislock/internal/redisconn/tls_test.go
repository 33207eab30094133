package redisconn

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/must"
)

// certificate returns a self-signed certificate for names and addresses.
func certificate(t *testing.T, names ...string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, name)
		}
	}
	der := must.Get(x509.CreateCertificate(rand.Reader, c, c, key.Public(), key))(t)
	signed := must.Get(x509.ParseCertificate(der))(t)
	pool := x509.NewCertPool()
	pool.AddCert(signed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// A server with an IP address must show a certificate for that, or for a host name of the user's.
// A server with a host name must show a certificate for that name.
func TestCertificatesOfServers(t *testing.T) {
	for _, c := range []struct {
		users, addr, shows string
		trusted, ok        bool
	}{
		{"one.example:1", "10.0.0.5:6379", "10.0.0.5", true, true},
		{"one.example:1", "[fe80::5]:6379", "fe80::5", true, true},
		{"one.example:1", "10.0.0.5:6379", "one.example", true, true},
		{"one.example:1", "10.0.0.5:6379", "other.example", true, false},
		{"one.example:1", "10.0.0.5:6379", "10.0.0.6", true, false},
		{"one.example:1", "10.0.0.5:6379", "10.0.0.5", false, false},
		{"one.example:1", "two.example:6379", "two.example", true, true},
		{"one.example:1", "two.example:6379", "one.example", true, false},
		{"10.0.0.1:1", "10.0.0.5:6379", "10.0.0.5", true, true},
		{"10.0.0.1:1", "10.0.0.5:6379", "10.0.0.1", true, false},
	} {
		cert, roots := certificate(t, c.shows)
		if !c.trusted {
			_, roots = certificate(t, c.shows)
		}
		here, there := net.Pipe()
		go tls.Server(there, &tls.Config{Certificates: []tls.Certificate{cert}}).HandshakeContext(t.Context())
		err := tls.Client(here, CertifiedFor(&tls.Config{RootCAs: roots}, c.addr, []string{"10.9.9.9:1", c.users})).HandshakeContext(t.Context())
		here.Close()
		there.Close()
		if (err == nil) != c.ok {
			t.Errorf("%s, named %s by the user, shows a certificate for %s: %v", c.addr, c.users, c.shows, err)
		}
	}
}
