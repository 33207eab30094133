package redisconn

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"slices"
)

// CertifiedFor returns a config that demands a certificate for addr. If addr is an IP address, as
// servers of a cluster call each other, a certificate for one of the user's host names will do
// too. If c has a ServerName, all servers must show it.
func CertifiedFor(c *tls.Config, addr string, users []string) *tls.Config {
	c = c.Clone()
	if c.ServerName != "" {
		return c
	}
	host, _, _ := net.SplitHostPort(addr)
	c.ServerName = host
	names := hostnames(users)
	if net.ParseIP(host) == nil || len(names) == 0 {
		return c
	}
	roots, accepted := c.RootCAs, append([]string{host}, names...)
	c.ServerName = names[0]
	c.InsecureSkipVerify = true // VerifyConnection verifies more than one name
	c.VerifyConnection = func(s tls.ConnectionState) error {
		if err := verify(s.PeerCertificates, roots, accepted); err != nil {
			return &tls.CertificateVerificationError{UnverifiedCertificates: s.PeerCertificates, Err: err}
		}
		return nil
	}
	return c
}

// hostnames returns the hosts that are not IP addresses.
func hostnames(addrs []string) []string {
	var names []string
	for _, addr := range addrs {
		if host, _, _ := net.SplitHostPort(addr); net.ParseIP(host) == nil {
			names = append(names, host)
		}
	}
	return names
}

// verify checks that a chain of certificates, the server's own first, leads to a root and is for
// one of the names.
func verify(chain []*x509.Certificate, roots *x509.CertPool, names []string) error {
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	if _, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between}); err != nil {
		return err
	}
	if slices.ContainsFunc(names, func(name string) bool { return chain[0].VerifyHostname(name) == nil }) {
		return nil
	}
	return chain[0].VerifyHostname(names[0])
}
