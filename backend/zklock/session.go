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

// anySession returns a session for requests that concern no ticket: an open one if possible.
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

// idleTime is how long a session without tickets stays open, at least.
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
	b.endTickets(s)
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

// inUse reports whether the session has tickets or was used since the last call. If not, it removes
// the session.
func (b *Backend) inUse(s *session) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	used := s.used
	for _, t := range b.tickets {
		used = used || t.s == s
	}
	if s.used = false; !used && b.sessions[s.ttl] == s {
		delete(b.sessions, s.ttl)
	}
	return used
}

// endTickets ends all tickets of a session, and reports the holds among them as lost.
func (b *Backend) endTickets(s *session) {
	b.mu.Lock()
	var gone []*ticket
	for owner, t := range b.tickets {
		if t.s == s {
			gone = append(gone, t)
			delete(b.tickets, owner)
		}
	}
	closed := b.life.Err() != nil
	b.mu.Unlock()
	for _, t := range gone {
		t.markGone(!closed)
	}
}

// ticket is an Owner's state at the servers: a hold, a queued attempt, or whatever an attempt of
// unknown outcome has left. It belongs to the session in which it began.
//
// The core makes one call at a time for an Owner. So mu guards only the fields that notifications
// of the servers change too.
type ticket struct {
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

// ticketOf returns an Owner's ticket for a lock, if its session lives.
func (b *Backend) ticketOf(h driver.Hold) *ticket {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t := b.tickets[h.Owner]; t != nil && t.name == h.Name && !t.s.over() {
		return t
	}
	return nil
}

// addTicket makes a ticket, before any node of it.
func (b *Backend) addTicket(s *session, r driver.Request) (*ticket, error) {
	t := &ticket{
		s: s, owner: r.Owner, name: r.Name, path: pathOf(r.Name), mode: r.Mode, limit: r.Limit, data: b.encodeData(r),
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life.Err() != nil {
		return nil, driver.ErrClosed
	}
	b.tickets[r.Owner] = t
	return t, nil
}

// encodeData returns the data of a request's node.
func (b *Backend) encodeData(r driver.Request) []byte {
	return encodeData(b.meta.Encode(r.Meta), r.OnRevoke != nil)
}

// removeTicket forgets a ticket without nodes.
func (b *Backend) removeTicket(t *ticket) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tickets[t.owner] == t {
		delete(b.tickets, t.owner)
	}
}

// holds reports whether the ticket is a hold, as far as is known here.
func (t *ticket) holds() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.isHold()
}

func (t *ticket) isHold() bool { return t.granted && !t.released && !t.gone }

// markHeld turns the ticket into a hold. It returns false if the ticket is already gone.
func (t *ticket) markHeld(r driver.Request) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.granted, t.heldAt, t.onLost, t.onRevoke = true, t.node, r.OnLost, r.OnRevoke
	return !t.gone
}

// markReleased prevents the end of the node from being reported as a loss.
func (t *ticket) markReleased() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.released = true
	t.stopTimer()
}

func (t *ticket) stopTimer() {
	if t.watchTimer != nil {
		t.watchTimer.Stop()
	}
}

// markGone is for a ticket whose nodes are gone. It may notify the holder, once.
func (t *ticket) markGone(notify bool) {
	t.mu.Lock()
	notify = notify && t.isHold() && t.onLost != nil
	t.gone = true
	t.stopTimer()
	onLost := t.onLost
	t.mu.Unlock()
	if notify {
		onLost()
	}
}

// dir returns the path below which the ticket's node is.
func (t *ticket) dir() string {
	if t.mode == driver.Counted {
		return t.path + "/" + leasesNode
	}
	return t.path
}

// queueDir returns the path below which a semaphore's waiters queue.
func (t *ticket) queueDir() string { return t.path + "/" + locksNode }

// prefix returns the path of the ticket's node, without the number.
func (t *ticket) prefix() string {
	if t.mode == driver.Counted {
		return t.dir() + "/" + prefixOf(t.owner) + limitPart(t.limit) + infixOf(t.mode)
	}
	return t.path + "/" + protection + t.owner + "-" + infixOf(t.mode)
}
