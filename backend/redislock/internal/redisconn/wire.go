package redisconn

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"strconv"
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
	if password != "" || user != "" { // a user without a password too: one that does not exist must not be the default one
		// HELLO does more than is needed, and what stands before servers may not know it.
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
		if got[i], err = w.answer(); err != nil {
			copy(got[i:], FailAll(len(got)-i, err))
			break
		}
	}
	return got
}

// answer reads the next answer.
func (w *wire) answer() (Answer, error) {
	reply, err := w.in.next()
	if re, is := reply.(*ReplyError); is {
		return Answer{Err: re}, err
	}
	return Answer{Reply: reply}, err
}
