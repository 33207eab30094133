package redisconn

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/internal/netaddr"
)

// Options say how to reach a server.
type Options struct {
	Network string // "tcp" if empty
	Addr    string
	DB      int

	// Timeout is how long it may take to make a connection, and to answer. The default is 5s.
	Timeout time.Duration

	// Credentials returns the user and the password of each login; nil: there is none.
	Credentials netaddr.Credentials

	// TLS returns the configuration of the next connection; nil: without TLS.
	TLS func() *tls.Config

	// Check looks at a new connection, by commands.
	Check func(do func(words ...string) (any, error)) error

	// Dialer replaces net.Dialer.
	Dialer func(ctx context.Context, network, addr string) (net.Conn, error)
}

func (o *Options) timeout() time.Duration { return cmp.Or(o.Timeout, defaultTimeout) }

// defaultTimeout is the timeout of an answer if there is none.
const defaultTimeout = 5 * time.Second

// errUnasked is the error of a connection that can't be used, since what comes next would be taken for an answer.
var errUnasked = errors.New("the server has answered more than was asked")

// wire is a connection to a server that has let us in.
type wire struct {
	net.Conn
	in   *reader
	peek peeker
	gone func() // is called by Close
}

// Close ends the connection. Later calls do nothing.
func (w *wire) Close() error {
	w.gone()
	return w.Conn.Close()
}

// connect makes a connection, and logs in.
func connect(ctx context.Context, o *Options, l *logins) (*wire, error) {
	if err := l.lately(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout())
	defer cancel()
	conn, err := o.dial(ctx)
	if err != nil {
		return nil, err
	}
	w := &wire{Conn: conn, in: newReader(conn), peek: newPeeker(conn), gone: func() {}}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(pastDeadline) })
	err = w.greet(ctx, o, l)
	switch {
	case !stop():
		err = ctx.Err()
	case err == nil && w.in.buffered():
		err = errUnasked
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return w, nil
}

// pastDeadline is a deadline that has passed.
var pastDeadline = time.Unix(1, 0)

func (o *Options) dial(ctx context.Context) (net.Conn, error) {
	dial := o.Dialer
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	conn, err := dial(ctx, cmp.Or(o.Network, "tcp"), o.Addr)
	if err != nil || o.TLS == nil {
		return conn, err
	}
	secure := tls.Client(conn, o.TLS())
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return secure, nil
}

// greet says who we are, and chooses the database.
func (w *wire) greet(ctx context.Context, o *Options, l *logins) error {
	user, password, err := l.ask(ctx, o.Credentials)
	if err != nil {
		return err
	}
	var commands [][]string
	// A user is named without a password too: otherwise the server would take us for its default user.
	if password != "" || user != "" {
		// AUTH and not HELLO, which does more than is needed, and which a proxy before the servers may not know.
		commands = append(commands, []string{"AUTH", cmp.Or(user, "default"), password})
	}
	if o.DB != 0 {
		commands = append(commands, []string{"SELECT", strconv.Itoa(o.DB)})
	}
	if len(commands) > 0 {
		err = FirstError(w.exchange(commands))
	}
	if err != nil || o.Check == nil {
		return l.refused(err, password)
	}
	return o.Check(func(words ...string) (any, error) {
		got := w.exchange([][]string{words})[0]
		return got.Reply, got.Err
	})
}

// exchange sends commands, and returns an answer for each. It is for one caller at a time.
func (w *wire) exchange(commands [][]string) []Answer {
	var b []byte
	for _, c := range commands {
		b = appendCommand(b, c)
	}
	if n, err := w.Write(b); err != nil {
		if n == 0 {
			err = unwritten(err)
		}
		return FailAll(len(commands), err)
	}
	got := make([]Answer, len(commands))
	for i := range got {
		var err error
		if got[i], err = w.in.answer(); err != nil {
			copy(got[i:], FailAll(len(got)-i, err))
			break
		}
	}
	return got
}

// logins remembers for a moment that a login at a server has failed, and why. Each of a thousand callers would make a
// connection of its own otherwise, and ask for credentials. The zero value is ready, and safe for concurrent use.
type logins struct {
	mu  sync.Mutex
	err error
	at  time.Time
}

// refusalLife is for how long no login is tried after one that has failed.
const refusalLife = 250 * time.Millisecond

func (l *logins) failed(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err, l.at = err, time.Now()
}

// lately returns why a login has failed just now, or nil.
func (l *logins) lately() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil || time.Since(l.at) > refusalLife {
		return nil
	}
	return l.err
}

// ask returns the user and the password of a login; c may be nil.
func (l *logins) ask(ctx context.Context, c netaddr.Credentials) (user, password string, err error) {
	if c == nil {
		return "", "", nil
	}
	if user, password, err = c(ctx); err != nil && ctx.Err() == nil {
		l.failed(err)
	}
	return user, password, err
}

// refused returns why a server lets us not in, without the password. It remembers a wrong one.
func (l *logins) refused(err error, password string) error {
	re, is := AsReply(err)
	if !is {
		return err
	}
	if password != "" {
		re = &ReplyError{Text: strings.ReplaceAll(re.Text, password, "***")}
	}
	if re.HasCode("WRONGPASS") {
		l.failed(re)
	}
	return re
}

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
