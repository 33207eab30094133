package zklock

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/zk"
)

// timeoutFactor is the ratio of a session's timeout to the TTL of its holds. After any answered
// write the session certainly lives for another half of its timeout, or a renewal reports that it
// may not: see zk.Conn.Deadline.
const timeoutFactor = 2

// session is shared by all holds of one TTL, which end with it. It is opened for the first of them
// and never replaced: its successor is another session.
type session struct {
	b     *Backend
	ttl   time.Duration // of the holds
	ready chan struct{} // closed when conn or err is set
	conn  *zk.Conn
	err   error

	used bool // since inUse was called last; guarded by Backend.mu
}

// session returns an open session for a TTL.
func (b *Backend) session(ctx context.Context, ttl time.Duration) (*session, error) {
	ttl = min(max(roundUp(ttl), b.caps.MinTTL), b.caps.MaxTTL)
	b.mu.Lock()
	if b.life.Err() != nil {
		b.mu.Unlock()
		return nil, driver.ErrClosed
	}
	s := b.sessions[ttl]
	if s == nil || s.unusable() {
		s = &session{b: b, ttl: ttl, ready: make(chan struct{})}
		b.sessions[ttl] = s
		b.tasks.Go(s.live)
	}
	s.used = true
	b.mu.Unlock()
	select {
	case <-s.ready:
		return s, s.err
	case <-ctx.Done():
		return s, fmt.Errorf("zklock: opening a session: %w", ctx.Err())
	}
}

// roundUp rounds a TTL up to two digits, so that similar TTLs share a session.
func roundUp(ttl time.Duration) time.Duration {
	step := time.Millisecond
	for step*100 <= ttl {
		step *= 10
	}
	return (ttl + step - 1) / step * step
}

// anySession returns a session for requests that concern no claim: an open one if possible.
func (b *Backend) anySession(ctx context.Context) (*session, error) {
	b.mu.Lock()
	for _, s := range b.sessions {
		if isDone(s.ready) && !s.unusable() && time.Now().Before(s.conn.Deadline()) {
			s.used = true
			b.mu.Unlock()
			return s, nil
		}
	}
	b.mu.Unlock()
	return b.session(ctx, b.caps.MaxTTL)
}

func isDone(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// unusable reports whether the session could not be opened, or has ended.
func (s *session) unusable() bool { return isDone(s.ready) && (s.err != nil || s.over()) }

// over reports whether the session has ended, as a fact.
func (s *session) over() bool { return isDone(s.conn.Done()) }

// awaitEnd waits for the end of a session after an answer has said that it is over.
func (s *session) awaitEnd(ctx context.Context) {
	select {
	case <-s.conn.Done():
	case <-ctx.Done():
	}
}

// idleTime is how long a session without claims stays open, at least.
const idleTime = time.Minute

// live opens the session, waits for its end, and then ends all its holds.
func (s *session) live() {
	b := s.b
	ctx, cancel := context.WithTimeout(b.life, b.opts.timeout)
	defer cancel()
	conn, err := zk.Dial(ctx, b.opts.config(s.ttl*timeoutFactor))
	if err == nil && conn.Timeout() < s.ttl*timeoutFactor {
		err = fmt.Errorf("%w: TTL %v needs a session of twice that, and the server grants %v: raise its maxSessionTimeout, or open the backend again", driver.ErrInvalid, s.ttl, conn.Timeout())
		closeConn(context.Background(), conn)
	}
	if err != nil {
		s.err = b.opts.explain(err)
		b.removeSession(s)
		close(s.ready)
		return
	}
	s.conn = conn
	close(s.ready)
	idle := time.NewTicker(idleTime)
	defer idle.Stop()
	for open := true; open; {
		select {
		case <-conn.Done():
			open = false
		case <-b.life.Done():
			open = false
		case <-idle.C:
			open = b.inUse(s)
		}
	}
	b.removeSession(s)
	b.endClaims(s)
	closeConn(context.Background(), conn)
}

// closeConn ends a session, and with it its nodes. If the servers don't answer within three seconds
// they do so after its timeout.
func closeConn(ctx context.Context, conn *zk.Conn) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	conn.Close(ctx)
}

func (b *Backend) removeSession(s *session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sessions[s.ttl] == s {
		delete(b.sessions, s.ttl)
	}
}

// inUse reports whether the session has claims or was used since the last call. If not, it removes
// the session.
func (b *Backend) inUse(s *session) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	used := s.used
	for _, c := range b.claims {
		used = used || c.s == s
	}
	if s.used = false; !used && b.sessions[s.ttl] == s {
		delete(b.sessions, s.ttl)
	}
	return used
}

// endClaims ends all claims of a session, and reports the holds among them as lost.
func (b *Backend) endClaims(s *session) {
	b.mu.Lock()
	var gone []*claim
	for owner, c := range b.claims {
		if c.s == s {
			gone = append(gone, c)
			delete(b.claims, owner)
		}
	}
	closed := b.life.Err() != nil
	b.mu.Unlock()
	for _, c := range gone {
		c.markGone(!closed)
	}
}

// claim is an Owner's state at the servers: a hold, a queued attempt, or whatever an attempt of
// unknown outcome has left. It belongs to the session in which it began.
//
// The core makes one call at a time for an Owner. So mu guards only the fields that notifications
// of the servers change too.
type claim struct {
	s         *session
	owner     string
	name      string
	path      string // of the lock
	mode      driver.Mode
	limit     int
	node      string // its path, or "" if there is none yet
	queueNode string // of a semaphore: the node below locks
	unknown   bool   // there may be nodes whose paths are unknown
	had       bool   // a release without an answer has deleted a node
	data      []byte // of node
	version   int32  // of data

	mu         sync.Mutex
	granted    bool
	released   bool // or about to be
	gone       bool // its node or its session has ended
	watched    bool // the servers will report changes of the node, or watchTimer runs
	watchTimer *time.Timer
	heldAt     string // the node that is to be watched
	revokeSent bool   // the holder was notified of a revocation
	onLost     func()
	onRevoke   func()
}

// claimOf returns an Owner's claim for a lock, if its session lives.
func (b *Backend) claimOf(h driver.Hold) *claim {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.claims[h.Owner]; c != nil && c.name == h.Name && !c.s.over() {
		return c
	}
	return nil
}

// addClaim makes a claim, before any node of it.
func (b *Backend) addClaim(s *session, r driver.Request) (*claim, error) {
	c := &claim{
		s: s, owner: r.Owner, name: r.Name, path: pathOf(r.Name), mode: r.Mode, limit: r.Limit, data: b.encodeData(r),
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life.Err() != nil {
		return nil, driver.ErrClosed
	}
	b.claims[r.Owner] = c
	return c, nil
}

// encodeData returns the data of a request's node.
func (b *Backend) encodeData(r driver.Request) []byte {
	return encodeData(b.meta.Encode(r.Meta), r.OnRevoke != nil)
}

// removeClaim forgets a claim without nodes.
func (b *Backend) removeClaim(c *claim) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.claims[c.owner] == c {
		delete(b.claims, c.owner)
	}
}

// holds reports whether the claim is a hold, as far as is known here.
func (c *claim) holds() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.isHold()
}

func (c *claim) isHold() bool { return c.granted && !c.released && !c.gone }

// markHeld turns the claim into a hold. It returns false if the claim is already gone.
func (c *claim) markHeld(r driver.Request) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.granted, c.heldAt, c.onLost, c.onRevoke = true, c.node, r.OnLost, r.OnRevoke
	return !c.gone
}

// markReleased prevents the end of the node from being reported as a loss.
func (c *claim) markReleased() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.released = true
	c.stopTimer()
}

func (c *claim) stopTimer() {
	if c.watchTimer != nil {
		c.watchTimer.Stop()
	}
}

// markGone is for a claim whose nodes are gone. It may notify the holder, once.
func (c *claim) markGone(notify bool) {
	c.mu.Lock()
	notify = notify && c.isHold() && c.onLost != nil
	c.gone = true
	c.stopTimer()
	onLost := c.onLost
	c.mu.Unlock()
	if notify {
		onLost()
	}
}

// dir returns the path below which the claim's node is.
func (c *claim) dir() string {
	if c.mode == driver.Counted {
		return c.path + "/" + leasesNode
	}
	return c.path
}

// queueDir returns the path below which a semaphore's waiters queue.
func (c *claim) queueDir() string { return c.path + "/" + locksNode }

// prefix returns the path of the claim's node, without the number.
func (c *claim) prefix() string {
	if c.mode == driver.Counted {
		return c.dir() + "/" + prefixOf(c.owner) + limitPart(c.limit) + infixOf(c.mode)
	}
	return c.path + "/" + protection + c.owner + "-" + infixOf(c.mode)
}
