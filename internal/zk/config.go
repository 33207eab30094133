package zk

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"time"
)

// Config describes the servers and the session.
type Config struct {
	// Servers are the addresses, host:port, of one ensemble. They are tried in random order.
	Servers []string

	// Chroot is the node that all paths are relative to. It must exist. Default: the root.
	Chroot string

	// Timeout is the session timeout to request. The servers bound it: see Conn.Timeout. Default:
	// 10 seconds.
	Timeout time.Duration

	// User and Password log in with the scheme "digest".
	User, Password string

	// Private gives only this user access to the nodes that the session creates.
	Private bool

	// TLS enables TLS. An empty ServerName means the server's host.
	TLS *tls.Config

	// Dial makes connections. Default: net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// MaxRequest is the greatest length of a request, in bytes: the servers' jute.maxbuffer, above
	// which they close the connection. Default: 1 MiB - 1, as theirs.
	MaxRequest int

	// MaxAnswer is the greatest length of an answer, in bytes. Default: 16 MiB.
	MaxAnswer int
}

// withDefaults validates c and sets its defaults.
func (c Config) withDefaults() (Config, error) {
	switch {
	case len(c.Servers) == 0:
		return c, errors.New("zk: no servers to connect to")
	case c.Timeout < 0 || c.MaxRequest < 0 || c.MaxAnswer < 0:
		return c, errors.New("zk: a timeout or limit is negative")
	case c.Private && c.User == "":
		return c, errors.New("zk: Private needs a User")
	}
	c.Chroot = strings.TrimSuffix(c.Chroot, "/")
	if err := checkPath(c.Chroot); c.Chroot != "" && err != nil {
		return c, fmt.Errorf("zk: chroot %q: %w", c.Chroot, err)
	}
	c.Timeout = cmp.Or(c.Timeout, 10*time.Second)
	c.MaxRequest = cmp.Or(c.MaxRequest, 1<<20-1)
	c.MaxAnswer = cmp.Or(c.MaxAnswer, 16<<20)
	c.Servers = slices.Clone(c.Servers)
	rand.Shuffle(len(c.Servers), func(i, j int) { c.Servers[i], c.Servers[j] = c.Servers[j], c.Servers[i] })
	if c.Dial == nil {
		c.Dial = new(net.Dialer).DialContext
	}
	return c, nil
}

// connect makes a TCP or TLS connection.
func (c *Config) connect(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := c.Dial(ctx, "tcp", addr)
	if err != nil || c.TLS == nil {
		return conn, err
	}
	own := c.TLS.Clone()
	if own.ServerName == "" {
		own.ServerName, _, _ = net.SplitHostPort(addr)
	}
	secure := tls.Client(conn, own)
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return secure, nil
}

var errPath = errors.New("a path begins with a slash, has no empty parts and doesn't end with a slash")

func checkPath(path string) error {
	if !strings.HasPrefix(path, "/") || len(path) > 1 && strings.HasSuffix(path, "/") || strings.Contains(path, "//") {
		return errPath
	}
	return nil
}

// absolute returns a path as the server knows it.
func (c *Config) absolute(path string) string {
	if c.Chroot != "" && path == "/" {
		return c.Chroot
	}
	return c.Chroot + path
}

// relative returns a server's path as the caller knows it.
func (c *Config) relative(full string) string {
	return cmp.Or(strings.TrimPrefix(full, c.Chroot), "/")
}
