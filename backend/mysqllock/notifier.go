package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/internal/connlock"
	"github.com/distlock/distlock/internal/wait"
)

// notifier wakes waiters in other processes through user-level locks, which the server grants to
// the next session as soon as they are released. It decides nothing: the rows do.
//
// A backend that has claims keeps one user-level lock in a session of its own, and its claims name
// it. To notify is to take the lock with the next number, and then to release the old one. All
// sessions that wait for the old one are granted it in turn. A release does that in its own statement if the session is idle.
// Each waiter waits for who is just before it. A session that comes later finds the lock
// free and knows that it missed a notification. No user-level lock is used twice, so a session that
// was cut off while it had one keeps no other session waiting.
//
// A process that waits needs no other connection: it waits in that session, and runs its statements there, in turn. A
// notification interrupts the wait.
type notifier struct {
	db      *sql.DB
	release *statement            // which ends a claim and notifies
	rest    func(d time.Duration) // sets how long the pool keeps unused connections; 0: as long as otherwise
	pending wait.Signal           // a notification to be sent
	asked   wait.Signal           // there is something else to do in the session
	retry   time.Duration         // pause after a failure
	idle    chan *notifierSession // has the session while nobody uses it

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     wait.Group

	mu          sync.Mutex
	running     bool
	needed      time.Time                // until when a row may have an address
	id          string                   // the backend's own address
	number      int64                    // of the lock that the session has, if live
	live        bool                     // there is a session
	waits       map[string]*notifierWait // by the id of the notifier that is waited for
	turn        *notifierWait            // the one that waits in the session; nil: none
	waiting     int64                    // the session's id at the server while it waits; 0: it does not
	interrupted chan struct{}            // closed when an interruption of the wait is over; nil: there is none
}

const (
	notifierIdle    = time.Minute      // how long a session lasts at least after its last use
	notifierPing    = 10 * time.Second // how often the session is checked
	notifierLife    = 60               // seconds of silence after which the server ends the session
	notifierRetry   = time.Second
	notifierTimeout = 5 * time.Second       // for one statement
	openPause       = 10 * time.Millisecond // before a session is opened, while the pool has no idle connection
)

func newNotifier(db *sql.DB, rest func(time.Duration)) *notifier {
	n := &notifier{db: db, rest: rest, retry: notifierRetry, pending: wait.NewSignal(), asked: wait.NewSignal(), idle: make(chan *notifierSession, 1), waits: map[string]*notifierWait{}}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	return n
}

// Address returns the address of the backend with an id now: the number of the user-level lock that the next notification
// releases comes after that. It is empty until the session that has the lock is ready.
func (n *notifier) Address(id string, life time.Duration) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.id = id
	if end := time.Now().Add(max(life, notifierIdle)); end.After(n.needed) {
		n.needed = end
	}
	if !n.running {
		n.running = n.start(n.run)
	}
	if !n.live {
		return ""
	}
	return addressOf(id, n.number)
}

func addressOf(id string, number int64) string { return id + "/" + strconv.FormatInt(number, 10) }

// Notify notifies all who follow this backend. Notifications that are not yet sent count as one.
func (n *notifier) Notify() {
	n.pending.Notify()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.interrupt()
}

// interrupt ends the session's wait. If that fails, it ends after waitSeconds. The mutex is held.
func (n *notifier) interrupt() {
	if n.waiting == 0 || n.interrupted != nil {
		return
	}
	over, id := make(chan struct{}), n.waiting
	if n.start(func() {
		defer close(over)
		ctx, cancel := context.WithTimeout(n.ctx, notifierTimeout)
		defer cancel()
		_, _ = n.db.ExecContext(ctx, "KILL QUERY "+strconv.FormatInt(id, 10))
	}) {
		n.interrupted = over
	}
}

// Close ends all sessions of the notifier, with their user-level locks.
func (n *notifier) Close() error {
	n.mu.Lock()
	n.cancel()
	n.mu.Unlock()
	n.wg.Wait()
	return nil
}

// start starts a goroutine unless the notifier is closed. The mutex is held.
func (n *notifier) start(run func()) bool {
	if n.ctx.Err() != nil {
		return false
	}
	n.wg.Go(run)
	return true
}

// run keeps a session for as long as it is used.
func (n *notifier) run() {
	for {
		err := n.serve()
		n.mu.Lock()
		n.live, n.running = false, n.isUsed()
		running, w := n.running, n.turn
		n.mu.Unlock()
		if w != nil {
			n.end(w, errNoSession)
		}
		if !running {
			return
		}
		if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) { // a caller's statement was given up
			_ = wait.Sleep(n.ctx, n.retry)
		}
	}
}

// isUsed reports whether the session is needed. The mutex is held.
func (n *notifier) isUsed() bool { return n.ctx.Err() == nil && time.Now().Before(n.needed) }

// setLock sets the lock that the session has. It returns false if the session is not used any more.
func (n *notifier) setLock(number int64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.number, n.live = number, true
	return n.isUsed()
}

// notifierSession is the connection of a notifier. A caller that has taken it from notifier.idle uses it alone, and gives it back.
type notifierSession struct {
	n        *notifier
	conn     *sql.Conn
	server   int64  // its id at the server
	id       string // of the backend
	number   int64  // of the user-level lock that it has
	prepared map[*statement]*sql.Stmt
	waited   *notifierWait // to be ended once others can use the session
	err      error         // it is of no use any more
}

var errNoLock = errors.New("the notifier's session does not have its lock")

var errNoSession = errors.New("the notifier has no session, or uses it")

// open opens a session. Its connection is not reused: it has a lock, and a timeout of its own.
func (n *notifier) open() (s *notifierSession, err error) {
	ctx, cancel := context.WithTimeout(n.ctx, notifierTimeout)
	defer cancel()
	s = &notifierSession{n: n, prepared: map[*statement]*sql.Stmt{}}
	if s.conn, err = n.db.Conn(ctx); err != nil {
		return nil, err
	}
	n.mu.Lock()
	s.id, s.number = n.id, n.number+1
	n.mu.Unlock()
	err = s.conn.QueryRowContext(ctx, "SELECT IF(GET_LOCK("+userLock(s.id, s.number)+", 0), CONNECTION_ID(), 0)").Scan(&s.server)
	if err == nil && s.server == 0 {
		err = errNoLock
	}
	if err == nil {
		_, err = s.conn.ExecContext(ctx, fmt.Sprintf("SET SESSION wait_timeout = %d", notifierLife))
	}
	if err == nil {
		_, err = s.prepare(ctx, n.release)
	}
	if err != nil {
		return nil, errors.Join(err, connlock.Discard(s.conn))
	}
	return s, nil
}

// serve keeps a session until that fails or is not used.
func (n *notifier) serve() error {
	if !reserveConn(n.db) {
		return errFullPool
	}
	defer unreserveConn(n.db)
	if n.db.Stats().Idle == 0 { // the statement that the session is asked for by leaves its connection to it
		_ = wait.Sleep(n.ctx, openPause)
	}
	s, err := n.open()
	if err != nil {
		return err
	}
	defer connlock.Discard(s.conn)
	tick := time.NewTicker(notifierPing)
	defer tick.Stop()
	for s.err == nil && n.setLock(s.number) {
		n.idle <- s
		if s.waited != nil { // its waiter's attempt finds the session idle
			n.end(s.waited, nil)
			s.waited = nil
		}
		n.mu.Lock()
		if n.turn != nil {
			n.asked.Notify()
		}
		n.mu.Unlock()
		do := func() {}
		select {
		case <-n.pending:
			do = s.notify
		case <-n.asked:
			do = s.wait
		case <-tick.C:
			do = func() { s.err = s.succeed("1") }
		case <-n.ctx.Done():
		}
		<-n.idle
		if s.err == nil {
			do()
		}
	}
	return s.err
}

// giveBack ends a use of the session.
func (s *notifierSession) giveBack() {
	failed := s.err != nil
	s.n.idle <- s
	if failed {
		s.n.asked.Notify()
	}
}

// notify takes the next lock first, so that there is one at any time.
func (s *notifierSession) notify() {
	s.err = s.succeed("GET_LOCK(" + userLock(s.id, s.number+1) + ", 0) + RELEASE_LOCK(" + userLock(s.id, s.number) + ") = 2")
	s.number++
}

// succeed evaluates an expression, which must be 1.
func (s *notifierSession) succeed(expression string) error {
	ctx, cancel := context.WithTimeout(s.n.ctx, notifierTimeout)
	defer cancel()
	ok, err := queryBool(ctx, s.conn, "SELECT "+expression)
	if err == nil && !ok {
		err = errNoLock
	}
	return err
}

func (s *notifierSession) prepare(ctx context.Context, stmt *statement) (*sql.Stmt, error) {
	if p := s.prepared[stmt]; p != nil {
		return p, nil
	}
	p, err := s.conn.PrepareContext(ctx, stmt.text)
	if err == nil {
		s.prepared[stmt] = p
	}
	return p, err
}

// use calls f with the session and a statement that is prepared there. It returns errNoSession, and does not call f, if there is no
// session that is idle. An error of f that is not the server's answer ends the session.
func (n *notifier) use(ctx context.Context, stmt *statement, f func(context.Context, *notifierSession, *sql.Stmt) error) error {
	var s *notifierSession
	select {
	case s = <-n.idle:
	default:
		return errNoSession
	}
	defer s.giveBack()
	if s.err == nil {
		s.err = connected(s.conn)
	}
	if s.err != nil {
		return errNoSession
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(n.ctx, cancel)()
	p, err := s.prepare(ctx, stmt)
	if err != nil {
		s.failed(err)
		return errNoSession
	}
	err = f(ctx, s, p)
	s.failed(err)
	return err
}

// failed takes note of an error after which the session is of no use.
func (s *notifierSession) failed(err error) {
	if err != nil && number(err) == 0 {
		s.err = err
	}
}

// change ends a claim, and notifies if there are places. It returns errNoSession if no session is idle. args returns the arguments of
// notifier.release, of which the names of user-level locks are two.
func (n *notifier) change(ctx context.Context, args func(taken, left string) []any) (count, told int64, err error) {
	err = n.use(ctx, n.release, func(ctx context.Context, s *notifierSession, p *sql.Stmt) (err error) {
		count, told, err = changed(p.ExecContext(ctx, args(lockName(s.id, s.number+1), lockName(s.id, s.number))...))
		switch {
		case told&toldNotified != 0:
			s.number++
			n.setLock(s.number)
		case told&toldWaiting != 0:
			s.err = errNoLock
		}
		return err
	})
	return count, told, err
}

// lockName returns the name of a user-level lock, of at most 64 bytes.
func lockName(id string, number int64) string { return "distlock/" + addressOf(id, number) }

// userLock is lockName in a statement.
func userLock(id string, number int64) string { return "'" + lockName(id, number) + "'" }

// splitAddress undoes addressOf. It refuses ids that must not get into a statement.
func splitAddress(address string) (id string, number int64, ok bool) {
	id, digits, _ := strings.Cut(address, "/")
	odd := strings.Trim(id, "0123456789abcdefghijklmnopqrstuvwxyz")
	number, err := strconv.ParseInt(digits, 10, 64)
	return id, number, odd == "" && id != "" && len(id) < 32 && err == nil && number > 0
}

// reserved counts the connections that notifiers and listeners keep, by pool.
var reserved = struct {
	sync.Mutex
	conns map[*sql.DB]int
}{conns: map[*sql.DB]int{}}

var errFullPool = errors.New("the pool has no connection to spare")

// reserveConn reports whether one more connection may be kept. It allows at most half of a limited
// pool, so that statements find a connection.
func reserveConn(db *sql.DB) bool {
	reserved.Lock()
	defer reserved.Unlock()
	limit := db.Stats().MaxOpenConnections
	if limit > 0 && reserved.conns[db] >= limit/2 {
		return false
	}
	reserved.conns[db]++
	return true
}

func unreserveConn(db *sql.DB) {
	reserved.Lock()
	defer reserved.Unlock()
	if reserved.conns[db]--; reserved.conns[db] == 0 {
		delete(reserved.conns, db)
	}
}
