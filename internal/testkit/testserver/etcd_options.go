package testserver

import (
	"crypto/tls"
	"net/url"
	"strings"
)

// EtcdOptions say how etcd's servers are set up. The zero value is one that anybody may
// use; alone, it grants leases of a second, the least that etcd can.
type EtcdOptions struct {
	// Password is that of the user root. With it, nobody may do anything who has not
	// logged in; AddUser makes others.
	Password string

	// TLS lets the server speak nothing else to its clients, and want a certificate of
	// theirs. The server's own does: see TLSConfig and Files.
	TLS bool

	// Args are further options, as on etcd's command line. What is given twice counts
	// as given last: "--election-timeout", "1000", "--heartbeat-interval", "100" are
	// etcd's own, with which no lease is shorter than two seconds.
	Args []string

	// Current asks for the current release instead of the installed one: the release that
	// the module in interop/etcd requires, built by Go, which takes minutes the first time.
	Current bool
}

// url is that of servers, for one of their users.
func (o *EtcdOptions) url(user, password, cert, key string, addrs ...string) string {
	u := url.URL{Scheme: "etcd", Host: strings.Join(addrs, ",")}
	if password != "" {
		u.User = url.UserPassword(user, password)
	}
	if o.TLS {
		u.Scheme = "etcds"
		u.RawQuery = url.Values{"ca": {cert}, "cert": {cert}, "key": {key}}.Encode()
	}
	return u.String()
}

// useTLS prepares the certificate, if one is wanted.
func (s *EtcdServer) useTLS() (err error) {
	if !s.options.TLS {
		return nil
	}
	c := ownCertificate()
	if s.cert, s.key, err = c.write(s.dir); err != nil {
		return err
	}
	own, err := tls.X509KeyPair(c.cert, c.key)
	s.tls = c.trust()
	s.tls.Certificates = []tls.Certificate{own}
	return err
}

func (s *EtcdServer) tlsArgs() []string {
	if s.tls == nil {
		return nil
	}
	return []string{"--cert-file", s.cert, "--key-file", s.key, "--trusted-ca-file", s.cert, "--client-cert-auth"}
}

func (s *EtcdServer) clientURL() string {
	if s.tls != nil {
		return "https://" + s.Addr()
	}
	return "http://" + s.Addr()
}

// TLSConfig is how clients reach the server; nil if it doesn't speak TLS.
func (s *EtcdServer) TLSConfig() *tls.Config {
	if s.tls == nil {
		return nil
	}
	return s.tls.Clone()
}

// Files are the server's certificate, which signs itself, and its key, in PEM form; empty
// without TLS.
func (s *EtcdServer) Files() (cert, key string) { return s.cert, s.key }
