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

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/connlock"
	"github.com/distlock/distlock/internal/engine"
	"github.com/distlock/distlock/internal/wait"
)

// notifier wakes waiters in other processes through user-level locks, which the server grants to
// the next session as soon as they are released. It decides nothing: the rows do.
//
// A backend that holds a lock keeps one user-level lock in a session of its own, and its claims name
// it. To notify is to take the lock with the next number, and then to release the old one. All
// sessions that wait for the old one are granted it in turn. A release does that in its own statement if the session is idle.
// Each waiter waits for who is just before it. A session that comes later finds the lock
// free and knows that it missed a notification. No user-level lock is used twice, so a session that
// was cut off while it had one keeps no other session waiting.
type notifier struct {
	db      *sql.DB
	release string      // the text of a statement that ends a claim and notifies
	pending wait.Signal // a notification to be sent
	calls   chan *notifierCall

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     wait.Group

	mu      sync.Mutex
	running bool
	needed  time.Time                // until when a row may have an address
	id      string                   // the backend's own address
	number  int64                    // of the lock that the session has, if live
	live    bool                     // there is a session
	waits   map[string]*notifierWait // by the id of the notifier that is waited for
}

const (
	notifierIdle    = time.Minute      // how long a session lasts at least after its last use
	notifierPing    = 10 * time.Second // how often the session is checked
	notifierLife    = 60               // seconds of silence after which the server ends the session
	notifierRetry   = time.Second      // pause after a failure
	notifierTimeout = 5 * time.Second  // for one statement

	waitSeconds = 5   // how long one statement waits for a user-level lock
	searchRange = 512 // how many notifications a row's address may be behind

	// attemptTime is how long who was woken has for its attempt, after which it follows the same notifier again.
	attemptTime = 10 * time.Millisecond

	// maxWaitConns is how many connections of a backend wait, each for one other process.
	// Waiters beyond that poll.
	maxWaitConns = 4
)

func newNotifier(db *sql.DB) *notifier {
	n := &notifier{db: db, pending: wait.NewSignal(), calls: make(chan *notifierCall), waits: map[string]*notifierWait{}}
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
func (n *notifier) Notify() { n.pending.Notify() }

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
		running := n.running
		n.mu.Unlock()
		if !running {
			return
		}
		if err != nil {
			_ = wait.Sleep(n.ctx, notifierRetry)
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

// serve sends notifications through one session until that fails or is not used. Its connection
// is not reused: it has a lock, and a timeout of its own.
func (n *notifier) serve() error {
	if !reserveConn(n.db) {
		return errFullPool
	}
	defer unreserveConn(n.db)
	ctx, cancel := context.WithTimeout(n.ctx, notifierTimeout)
	defer cancel()
	conn, err := n.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer connlock.Discard(conn)
	n.mu.Lock()
	id, number := n.id, n.number+1
	n.mu.Unlock()
	err = n.succeed(conn, "GET_LOCK("+userLock(id, number)+", 0)")
	if err == nil {
		_, err = conn.ExecContext(ctx, fmt.Sprintf("SET SESSION wait_timeout = %d", notifierLife))
	}
	var release *sql.Stmt
	if err == nil {
		release, err = conn.PrepareContext(ctx, n.release)
	}
	tick := time.NewTicker(notifierPing)
	defer tick.Stop()
	for err == nil && n.setLock(number) {
		select {
		case <-n.pending:
			number++
			// The new lock is taken first, so that there is one at any time.
			err = n.succeed(conn, "GET_LOCK("+userLock(id, number)+", 0) + RELEASE_LOCK("+userLock(id, number-1)+") = 2")
		case call := <-n.calls:
			var notified bool
			if err = connected(conn); err != nil {
				call.err = errNotIdle
			} else if notified, err = n.call(release, id, number, call); notified {
				number++
				n.setLock(number)
			}
			close(call.done)
		case <-tick.C:
			err = n.succeed(conn, "1")
		case <-n.ctx.Done():
			return nil
		}
	}
	return err
}

// notifierCall is a statement in the notifier's session.
type notifierCall struct {
	args func(taken, left string) []any
	done chan struct{} // closed when the fields below are set

	n, told int64
	err     error
}

// errNotIdle means that the notifier has no session, or uses it.
var errNotIdle = errors.New("the notifier's session is not idle")

// change ends a claim in the session, if that is idle. taken and left are the names of locks.
func (n *notifier) change(ctx context.Context, args func(taken, left string) []any) (count, told int64, err error) {
	call := &notifierCall{args: args, done: make(chan struct{})}
	select {
	case n.calls <- call:
	default:
		return 0, 0, errNotIdle
	}
	select {
	case <-call.done:
		return call.n, call.told, call.err
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
}

// call executes a call. An error is one of the session's; what the statement itself answers is the call's.
func (n *notifier) call(stmt *sql.Stmt, id string, number int64, call *notifierCall) (notified bool, err error) {
	ctx, cancel := context.WithTimeout(n.ctx, notifierTimeout)
	defer cancel()
	call.n, call.told, call.err = changed(stmt.ExecContext(ctx, call.args(lockName(id, number+1), lockName(id, number))...))
	if call.err != nil && !undone(call.err) {
		return false, call.err
	}
	if notified = call.told&toldNotified != 0; call.told&toldWaiting != 0 && !notified {
		return false, errNoLock
	}
	return notified, nil
}

var errNoLock = errors.New("the notifier's session does not have its lock")

// succeed evaluates an expression, which must be 1.
func (n *notifier) succeed(conn *sql.Conn, expression string) error {
	ctx, cancel := context.WithTimeout(n.ctx, notifierTimeout)
	defer cancel()
	ok, err := queryBool(ctx, conn, "SELECT "+expression)
	if err == nil && !ok {
		err = errNoLock
	}
	return err
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

// follower wakes one waiter. It goes on after the last notification that it knows of.
type follower struct {
	notifier *notifier
	waiter   engine.Waiter
	id       string // of the notifier whose notification came last
	next     int64  // the first of its locks that has not been waited for
}

// Listen wakes a waiter when who is before it notifies.
func (n *notifier) Listen(w engine.Waiter, heard func(end string)) (stop func(), err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	ctx, cancel := context.WithCancel(n.ctx)
	f := &follower{notifier: n, waiter: w}
	if !n.start(func() { f.run(ctx, heard) }) {
		cancel()
		return nil, driver.ErrClosed
	}
	return cancel, nil
}

// run follows whom the waiter is behind.
func (f *follower) run(ctx context.Context, heard func(end string)) {
	for address := ""; ; {
		silent := address == ""
		if !silent {
			address, silent = f.wait(ctx, address, heard)
		}
		if silent {
			select {
			case address = <-f.waiter.Follow:
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// wait waits until the user-level lock that the address names is released, or for some seconds, or until the waiter is behind
// another. Waiters that follow the same notifier share the statement that waits, which may outlast ctx. silent: nothing can be
// heard from there.
func (f *follower) wait(ctx context.Context, address string, heard func(end string)) (next string, silent bool) {
	id, number, ok := splitAddress(address)
	if !ok {
		f.waiter.Poll()
		return "", true
	}
	if id != f.id {
		f.id, f.next = id, 0
	}
	f.next = max(f.next, number)
	w := f.notifier.join(id, f.next)
	if w == nil {
		f.waiter.Poll()
		return "", true
	}
	if w.number <= f.next {
		select {
		case <-w.done:
		case next = <-f.waiter.Follow:
			return next, next == ""
		case <-ctx.Done():
			return "", true
		}
		if w.silent {
			f.waiter.Poll()
			return "", true
		}
		if w.number < f.next && w.next <= f.next { // others waited for what this one knows
			return address, false
		}
		f.next = max(f.next, w.next)
	}
	f.next = max(f.next, w.number)
	heard(engine.EndOf(f.waiter.Owner))
	select { // the waiter's attempt says whom it is behind now
	case next = <-f.waiter.Follow:
		return next, next == ""
	case <-time.After(attemptTime):
	case <-ctx.Done():
	}
	return address, false
}

// notifierWait is one statement that waits for a user-level lock, on a connection of its own.
type notifierWait struct {
	id     string
	number int64
	done   chan struct{} // closed when the fields below are set

	next   int64 // the lock to wait for next; greater than number after a notification
	silent bool  // nothing can be waited for
}

// join returns the statement that waits for a notifier. It starts one if there is none, and returns
// nil if it can't.
func (n *notifier) join(id string, number int64) *notifierWait {
	n.mu.Lock()
	defer n.mu.Unlock()
	if w := n.waits[id]; w != nil {
		return w
	}
	w := &notifierWait{id: id, number: number, next: number, done: make(chan struct{})}
	if len(n.waits) == maxWaitConns || !n.start(func() { n.wait(w) }) {
		return nil
	}
	n.waits[id] = w
	return w
}

// wait waits, and answers the listeners of w.
func (n *notifier) wait(w *notifierWait) {
	err := n.waitOnConn(w)
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.waits, w.id)
	w.silent = err != nil
	close(w.done)
}

// waitOnConn waits for the lock once, and then looks for the next one. An error means that there is
// nothing to wait for.
func (n *notifier) waitOnConn(w *notifierWait) error {
	if !reserveConn(n.db) {
		return errFullPool
	}
	defer unreserveConn(n.db)
	ctx, cancel := context.WithTimeout(n.ctx, waitSeconds*time.Second+notifierTimeout)
	defer cancel()
	// A session that was granted the lock passes it on at once.
	name := userLock(w.id, w.number)
	var waited sql.NullInt64
	err := n.db.QueryRowContext(ctx, fmt.Sprintf("SELECT IF(IS_FREE_LOCK(%s), -1, GET_LOCK(%s, %d) + COALESCE(RELEASE_LOCK(%s), 0))",
		name, name, waitSeconds, name)).Scan(&waited)
	switch {
	case err != nil:
		return err
	case waited.Int64 > 0:
		w.next++
	case waited.Int64 < 0:
		return n.search(ctx, w)
	}
	return nil
}

// search finds the lock that the notifier has now, if the one to wait for is free.
func (n *notifier) search(ctx context.Context, w *notifierWait) error {
	var cases strings.Builder
	for number := w.number + 1; number <= w.number+searchRange; number++ {
		fmt.Fprintf(&cases, " WHEN NOT IS_FREE_LOCK(%s) THEN %d", userLock(w.id, number), number)
	}
	var number sql.NullInt64
	err := n.db.QueryRowContext(ctx, "SELECT CASE"+cases.String()+" END").Scan(&number)
	if err == nil && !number.Valid {
		return errors.New("the notifier has ended")
	}
	w.next = max(w.next, number.Int64)
	return err
}
