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

	"github.com/distlock/distlock/internal/netaddr"
	"github.com/distlock/distlock/internal/wait"
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

	// Login returns the user and the password for the scheme "digest". It is called before each connection, and after
	// the servers have refused a right, since passwords change. nil: there is no login.
	Login netaddr.Credentials

	// Private gives only this user access to the nodes that the session creates.
	Private bool

	// TLS enables TLS. An empty ServerName means the server's host.
	TLS *netaddr.Certificates

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
	case c.Private && c.Login == nil:
		return c, errors.New("zk: Private needs a Login")
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
	own := c.TLS.Config()
	if err != nil || own == nil {
		return conn, err
	}
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

// Dial opens a session. It tries each server once, for ten seconds in all, until one has opened the
// session, accepted the user and found the chroot. The session is independent of ctx: it lasts
// until Close.
func Dial(ctx context.Context, cfg Config) (*Conn, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	c := newConn(cfg)
	first, err := c.openSession(ctx)
	if err != nil {
		c.cancel()
		return nil, err
	}
	go c.run(first)
	if err := c.checkChroot(ctx); err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), min(c.Timeout(), maxGoodbye))
		defer cancel()
		c.Close(ctx)
		return nil, err
	}
	return c, nil
}

const (
	minPause          = 5 * time.Millisecond
	maxPause          = time.Second
	maxGoodbye        = time.Second // how long a failed Dial tries to end its session
	maxAttemptTimeout = 10 * time.Second
	midAttemptTimeout = 2 * time.Second
)

// openSession requests a new session from each server in turn.
func (c *Conn) openSession(ctx context.Context) (*serverConn, error) {
	var errs []error
	ctx, cancel := context.WithTimeout(ctx, maxAttemptTimeout)
	defer cancel()
	deadline, _ := ctx.Deadline()
	for left := len(c.cfg.Servers); left > 0; left-- {
		conn, w, err := c.dialNext(ctx, time.Until(deadline)/time.Duration(left))
		if err == nil {
			c.identity = w.identity
			c.proof.timeout = w.timeout
			c.proof.created(w.sentAt)
			return newServerConn(c, conn, w.sentAt), nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("zk: no server opens a session: %w", errors.Join(errs...))
}

// dialNext connects to the next server.
func (c *Conn) dialNext(ctx context.Context, timeout time.Duration) (net.Conn, connectResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	addr := c.cfg.Servers[c.nextServer]
	c.nextServer = (c.nextServer + 1) % len(c.cfg.Servers)
	c.mu.Lock()
	zxid := c.zxid
	c.mu.Unlock()
	if err := c.prepareLogin(ctx, timeout); err != nil {
		return nil, connectResponse{}, err
	}
	conn, w, err := c.cfg.dialSession(ctx, addr, c.identity, zxid)
	if zxid > 0 && errors.Is(err, errNotServed) {
		return c.cfg.askWhetherKnown(ctx, addr, c.identity, err)
	}
	return conn, w, err
}

// askWhetherKnown asks a server that has closed the connection whether it has less than the session has seen. A connection
// comes with errBehind if the server, or its leader, knows the session.
func (c *Config) askWhetherKnown(ctx context.Context, addr string, own identity, notServed error) (net.Conn, connectResponse, error) {
	const nothingSeen = 0
	conn, w, err := c.dialSession(ctx, addr, own, nothingSeen)
	switch {
	case errors.Is(err, ErrSessionExpired):
		return nil, w, fmt.Errorf("%s: %w, nor knows it: has it lost its data?", addr, errBehind)
	case err == nil:
		return conn, w, fmt.Errorf("%s: %w: does it lag, or was it given an older copy of its data?", addr, errBehind)
	}
	return nil, w, notServed
}

// errBehind is of a server that has less than the session has seen. That is no fact about the session: a follower may lag
// behind, and a leader that the others have replaced may not know of that yet.
var errBehind = errors.New("the server has not seen what this session has seen")

func (c *Conn) checkChroot(ctx context.Context) error {
	_, _, err := c.Get(ctx, "/")
	switch {
	case errors.Is(err, ErrNoNode):
		return fmt.Errorf("zk: %s: %w", c.cfg.Chroot, ErrNoChroot)
	case errors.Is(err, ErrNoAuth):
		return nil // it exists
	}
	return err
}

// Close ends the session, with its ephemeral nodes and watches. An error means that the servers
// haven't confirmed it before ctx ended: they end the session after its timeout. In both cases
// later requests fail with ErrClosed. Requests that are in flight get their answers first, while
// ctx lasts.
func (c *Conn) Close(ctx context.Context) error {
	err := c.sendClose(ctx)
	c.end(ErrClosed)
	select {
	case <-c.stopped:
	case <-ctx.Done():
	}
	return err
}

func (c *Conn) sendClose(ctx context.Context) error {
	c.mu.Lock()
	first := !c.closing && c.err == nil
	c.closing = true
	c.mu.Unlock()
	if !first {
		select {
		case <-c.done:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("zk: close: %w", ctx.Err())
		}
	}
	q := newRPC(opCloseSession, "")
	q.idempotent = true
	_, err := c.do(ctx, q)
	if errors.Is(err, ErrSessionExpired) {
		return nil
	}
	return err
}

// run serves one connection after the other until the session is over.
func (c *Conn) run(s *serverConn) {
	defer close(c.stopped)
	for useless := 0; s != nil; s = c.reconnect() {
		c.useful = false
		s.serve()
		c.requeueInFlight()
		if useless++; c.useful {
			useless = 0
			continue
		}
		wait.Sleep(c.ctx, wait.Backoff(useless-1, minPause, min(maxPause, c.Timeout()/beatPart)))
	}
	c.failPending()
	if c.resumable != nil {
		time.Sleep(closeDelay)
		closeSession(c.resumable)
	}
}

// closeDelay lets holders stop before their nodes are deleted.
const closeDelay = 200 * time.Millisecond

// closeSession ends a session at the servers that is over for its client, so that its nodes don't stay until its timeout.
func closeSession(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	const xid = 1
	if _, err := conn.Write(appendText([]byte(nil), appendInt(appendInt(nil, xid), int32(opCloseSession)))); err == nil {
		_, _ = conn.Read(make([]byte, 1)) // the answer
	}
}

// requeueInFlight handles the requests that were sent and not answered: idempotent ones are queued
// before all others, the rest fail.
func (c *Conn) requeueInFlight() {
	c.mu.Lock()
	defer c.mu.Unlock()
	var again []*rpc
	for _, q := range c.inFlight {
		if q.stage != abandoned && q.idempotent && q.resends < maxResends {
			q.stage, q.resends = queued, q.resends+1
			again = append(again, q)
		} else {
			c.finish(q, ErrConnectionLoss)
		}
	}
	clear(c.inFlight)
	c.inFlight = c.inFlight[:0]
	for _, q := range c.queue {
		if q.internal {
			c.finish(q, ErrConnectionLoss)
		} else {
			again = append(again, q)
		}
	}
	c.queue = again
}

// reconnect resumes the session at another server, however long that takes. It returns nil when the
// session is over.
func (c *Conn) reconnect() *serverConn {
	timeout, round := c.Timeout()/beatPart, 0
	var behind time.Time // when a server was first found to be so
	for tries := 1; c.ctx.Err() == nil; tries++ {
		conn, w, err := c.dialNext(c.ctx, timeout)
		c.setBroken(err)
		switch {
		case err == nil && w.timeout < c.Timeout():
			// The proofs so far are for longer: the servers' settings differ.
			c.end(ErrSessionExpired)
			c.resumable = conn
		case err == nil:
			return c.resumed(conn, w)
		case errors.Is(err, ErrSessionExpired):
			c.end(err)
		case errors.Is(err, errBehind):
			if behind.IsZero() {
				behind = time.Now()
			}
			c.endIfBehind(behind, conn, err)
		}
		if tries%len(c.cfg.Servers) == 0 { // all have been tried
			wait.Sleep(c.ctx, wait.Backoff(round, minPause, maxPause))
			round, timeout = round+1, longerTimeout(timeout, c.Timeout())
		}
	}
	return nil
}

// endIfBehind ends the session if no server has taken it since its timeout, and those that serve are behind. By then no
// lagging follower serves any more, nor a leader that was replaced, and other servers would have ended the session themselves. So
// what it has seen is gone. conn leads to a server that knows the session, or is nil.
func (c *Conn) endIfBehind(since time.Time, conn net.Conn, why error) {
	if time.Since(since) >= c.Timeout() {
		c.end(fmt.Errorf("%w: %w", ErrSessionExpired, why))
		c.resumable = conn
	} else if conn != nil {
		conn.Close()
	}
}

// longerTimeout is for the attempts of the next round, after no server has resumed the session.
// Servers without a majority don't answer. None of them may use up the session's time, which the
// others need once they have a leader again.
func longerTimeout(last, session time.Duration) time.Duration {
	return min(2*last, max(session, midAttemptTimeout), maxAttemptTimeout)
}

func (c *Conn) resumed(conn net.Conn, w connectResponse) *serverConn {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.proof.timeout = w.timeout
	c.proof.connected(w.sentAt)
	return newServerConn(c, conn, time.Time{})
}

// failPending fails all requests and notifies all watches of the session's end.
func (c *Conn) failPending() {
	c.mu.Lock()
	why := c.err
	for _, q := range c.queue {
		c.finish(q, why)
	}
	c.queue = nil
	fired := c.watches.fireAll()
	c.mu.Unlock()
	for _, w := range fired {
		w.f(EventSession)
	}
}

// proof computes until when the session certainly lives at the servers.
//
// An answer from a server doesn't prove that. Only the leader ends sessions, and it counts from
// when it last heard of one. The other servers answer pings and reads themselves, and report active
// sessions to the leader twice per tick. A server that is cut off from the leader, or a leader that
// is cut off from the others, still answers for syncLimit ticks: 10 seconds with usual settings.
//
// So only answers to writes count, to which a majority has agreed. They prove that after the
// request was sent, the server was connected to the leader and the leader to a majority. An
// answer that the same server gave a quarter of the timeout earlier was reported to the leader by then,
// because the servers allow no timeout below two ticks. A leader that is elected later gives every
// session its full timeout again.
type proof struct {
	timeout time.Duration
	marks   []mark // thinned out
	until   time.Time
}

// mark is a request that was sent on this connection. The first mark is the handshake.
type mark struct {
	sent  time.Time
	known time.Time // when the server certainly had it
}

// Fractions of the timeout.
const (
	reportPart = 4  // after this the leader knows of a session that a server heard from
	beatPart   = 6  // a write is sent at least this often
	markPart   = 24 // the resolution of marks
)

// connected restarts the marks for a connection whose handshake was sent at a time.
func (p *proof) connected(at time.Time) { p.marks = append(p.marks[:0], mark{at, at}) }

// created is for a new session, whose creation is a write.
func (p *proof) created(at time.Time) {
	p.connected(at)
	p.until = at.Add(p.timeout)
}

// answered is for any request, sent at a time and answered now. Until now it may have been on its
// way.
func (p *proof) answered(at, now time.Time) {
	if at.Sub(p.marks[len(p.marks)-1].sent) >= p.timeout/markPart {
		p.marks = append(p.marks, mark{at, now})
	}
}

// agreed is for a write that was sent at a time and succeeded. The leader knows of a handshake at
// once.
func (p *proof) agreed(at time.Time) {
	reported := at.Add(-p.timeout / reportPart)
	later := 1
	for later < len(p.marks) && !p.marks[later].known.After(reported) {
		later++
	}
	p.marks = slices.Delete(p.marks, 0, later-1)
	if until := p.marks[0].sent.Add(p.timeout); until.After(p.until) {
		p.until = until
	}
}
