package testserver

import (
	"crypto/tls"
	"net"
	"strconv"
)

// RedisOptions say how the servers of a deployment are set up. The zero value is
// servers that anybody may use.
type RedisOptions struct {
	// Password is what every server wants. With a User it is that user's and nobody
	// else may do anything; without, the default user's.
	User, Password string

	// SentinelUser and SentinelPassword are the same for the sentinels.
	SentinelUser, SentinelPassword string

	// TLS lets the servers that keep data speak nothing else. Clients use TLSConfig.
	TLS bool

	// Args are further options for each server that keeps data, as in Redis.
	Args []string

	// Front is called with the address of each server that keeps data, before it is
	// started, and returns the one that it tells others: the address of a proxy.
	// Replicas, sentinels and clients then all come that way.
	Front func(addr string) string
}

// args are a data server's options.
func (o *RedisOptions) args() []string {
	args := append([]string{"--repl-diskless-sync-delay", "0"}, loginArgs(o.User, o.Password)...)
	if o.Password != "" {
		args = append(args, "--masterauth", o.Password)
	}
	if o.User != "" {
		args = append(args, "--masteruser", o.User)
	}
	return append(args, o.Args...)
}

// loginArgs are the options that make a server ask for a password.
func loginArgs(user, password string) []string {
	switch {
	case user != "":
		return []string{
			"--user", "default", "off",
			"--user", user, "on", ">" + password, "~*", "&*", "+@all",
		}
	case password != "":
		return []string{"--requirepass", password}
	}
	return nil
}

// front is the address that a server tells others.
func (o *RedisOptions) front(addr string) (host, port string, err error) {
	if o.Front != nil {
		addr = o.Front(addr)
	}
	return net.SplitHostPort(addr)
}

// start starts a server that keeps data.
func (o *RedisOptions) start(s *RedisServer, more func(s *RedisServer) ([]string, error)) error {
	s.user, s.password = o.User, o.Password
	return s.launch(func() ([]string, error) {
		args := o.args()
		if o.TLS {
			own, err := s.useTLS()
			if err != nil {
				return nil, err
			}
			args = append(args, own...)
		}
		extra, err := more(s)
		return append(args, extra...), err
	})
}

// useTLS is the options that move the server's port to TLS.
func (s *RedisServer) useTLS() ([]string, error) {
	c := ownCertificate()
	cert, key, err := c.write(s.dir)
	if err != nil {
		return nil, err
	}
	s.tls = c.trust()
	return []string{
		"--tls-port", strconv.Itoa(s.port), "--port", "0",
		"--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert,
		"--tls-auth-clients", "no", "--tls-replication", "yes", "--tls-cluster", "yes",
	}, nil
}

// TLSConfig is how clients reach the server; nil if it doesn't speak TLS.
func (s *RedisServer) TLSConfig() *tls.Config {
	if s.tls == nil {
		return nil
	}
	return s.tls.Clone()
}
