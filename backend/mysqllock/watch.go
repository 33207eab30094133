package mysqllock

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/internal/connlock"
	"github.com/distlock/distlock/internal/sqlrow"
	"github.com/distlock/distlock/internal/wait"
)

// notifier wakes waiters in other processes through user-level locks, which the server grants to
// the next session as soon as they are released. It decides nothing: the rows do.
//
// A backend that holds a lock keeps one user-level lock in a session of its own, and its rows name
// it. To notify is to take the lock with the next number, and then to release the old one. All
// sessions that wait for the old one are granted it in turn. A release does that in its own statement if the session is idle.
// In a queue each waits for the one just before it. A session that comes later finds it
// free and knows that it missed a notification. No user-level lock is used twice, so a session that
// was cut off while it had one keeps no other session waiting.
type notifier struct {
	db      *sql.DB
	text    string      // frees a hold and notifies: the next lock, the one that the session has, key, owner
	pending wait.Signal // a notification to be sent
	calls   chan *notifierCall

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     wait.Group

	mu      sync.Mutex
	running bool
	needed  time.Time                // until when a row may have an address
	id      string                   // of the session; empty if there is none
	number  int64                    // of the lock that the session has
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

	// maxWaitConns is how many connections of a backend wait, each for one other process.
	// Waiters beyond that poll.
	maxWaitConns = 4
)

func newNotifier(db *sql.DB) *notifier {
	n := &notifier{db: db, pending: wait.NewSignal(), calls: make(chan *notifierCall), waits: map[string]*notifierWait{}}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	return n
}

// Address returns the name of the user-level lock that the next notification releases. It is empty
// until the session that has the lock is ready.
func (n *notifier) Address(life time.Duration) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if end := time.Now().Add(max(life, notifierIdle)); end.After(n.needed) {
		n.needed = end
	}
	if !n.running {
		n.running = n.start(n.run)
	}
	if n.id == "" {
		return ""
	}
	return userLock(n.id, n.number)
}

// Notify notifies all listeners of this backend's address. Notifications that are not yet sent
// count as one.
func (n *notifier) Notify(sqlrow.Key) { n.pending.Notify() }

// Listen returns a listener for one row.
func (n *notifier) Listen(sqlrow.Key) sqlrow.Listener { return &listener{notifier: n} }

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
		n.id, n.running = "", n.isUsed()
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
func (n *notifier) setLock(id string, number int64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.id, n.number = id, number
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
	var random [8]byte
	rand.Read(random[:])
	id, number := hex.EncodeToString(random[:]), int64(0)
	err = n.succeed(conn, "GET_LOCK('"+userLock(id, 0)+"', 0)")
	if err == nil {
		_, err = conn.ExecContext(ctx, fmt.Sprintf("SET SESSION wait_timeout = %d", notifierLife))
	}
	var free *sql.Stmt
	if err == nil {
		free, err = conn.PrepareContext(ctx, n.text)
	}
	tick := time.NewTicker(notifierPing)
	defer tick.Stop()
	for err == nil && n.setLock(id, number) {
		select {
		case <-n.pending:
			number++
			// The new lock is taken first, so that there is one at any time.
			err = n.succeed(conn, "GET_LOCK('"+userLock(id, number)+"', 0) + RELEASE_LOCK('"+userLock(id, number-1)+"') = 2")
		case call := <-n.calls:
			var notified bool
			if err = connected(conn); err != nil {
				call.err = errNotIdle
			} else if notified, err = n.free(free, id, number, call); notified {
				number++
				n.setLock(id, number)
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
	key, owner []byte
	done       chan struct{} // closed when the fields below are set

	n, waiting int64
	err        error
}

// errNotIdle means that the notifier has no session, or uses it.
var errNotIdle = errors.New("the notifier's session is not idle")

// change frees a hold in the session, if that is idle. waiting means that there are waiters who are not notified yet.
func (n *notifier) change(ctx context.Context, key, owner []byte) (count, waiting int64, err error) {
	call := &notifierCall{key: key, owner: owner, done: make(chan struct{})}
	select {
	case n.calls <- call:
	default:
		return 0, 0, errNotIdle
	}
	select {
	case <-call.done:
		return call.n, call.waiting, call.err
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
}

// free executes a call. An error is one of the session's; what the statement itself answers is the call's.
func (n *notifier) free(stmt *sql.Stmt, id string, number int64, call *notifierCall) (notified bool, err error) {
	ctx, cancel := context.WithTimeout(n.ctx, notifierTimeout)
	defer cancel()
	var result int64
	call.n, result, call.err = changed(stmt.ExecContext(ctx, userLock(id, number+1), userLock(id, number), call.key, call.owner))
	if call.err != nil && !undone(call.err) {
		return false, call.err
	}
	if result == 1 {
		call.waiting = 1
		return false, errors.New("the notifier's session does not have its lock")
	}
	return result == 2, nil
}

// succeed evaluates an expression, which must be 1.
func (n *notifier) succeed(conn *sql.Conn, expression string) error {
	ctx, cancel := context.WithTimeout(n.ctx, notifierTimeout)
	defer cancel()
	ok, err := queryBool(ctx, conn, "SELECT "+expression)
	if err == nil && !ok {
		err = errors.New("the notifier's session does not have its lock")
	}
	return err
}

// own reports whether id belongs to this notifier's session.
func (n *notifier) own(id string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return id == n.id
}

// userLock returns the name of a user-level lock. It is in lower case and has at most 64 bytes,
// which all servers distinguish.
func userLock(id string, number int64) string {
	return "distlock/" + id + "/" + strconv.FormatInt(number, 10)
}

// splitAddress undoes userLock. It refuses ids that must not get into a statement.
func splitAddress(address string) (id string, number int64, ok bool) {
	name, ours := strings.CutPrefix(address, "distlock/")
	id, digits, _ := strings.Cut(name, "/")
	_, malformed := hex.DecodeString(id)
	number, err := strconv.ParseInt(digits, 10, 64)
	return id, number, ours && malformed == nil && err == nil
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

// listener waits for the notifications that concern one row. It goes on after the last
// notification that it knows of.
type listener struct {
	notifier *notifier
	id       string // of the notifier whose notification came last
	next     int64  // the first of its locks that has not been waited for
}

// Arm does nothing: a notification that is sent before Wait is known by its number.
func (l *listener) Arm(context.Context) error { return nil }

// Wait waits until the user-level lock that the address names is released. Listeners for several
// rows share the statement that waits, which may outlast ctx: the next call wants the same.
func (l *listener) Wait(ctx context.Context, address string) (notified, silent bool) {
	id, number, ok := splitAddress(address)
	switch {
	case !ok:
		return false, true
	case l.notifier.own(id):
		// This backend wakes its own waiters.
		<-ctx.Done()
		return false, false
	case id != l.id:
		l.id, l.next = id, 0
	}
	number = max(number, l.next)
	w := l.notifier.join(id, number)
	if w == nil {
		return false, true
	}
	if w.number > number {
		l.next = w.number
		return true, false
	}
	select {
	case <-w.done:
	case <-ctx.Done():
		return false, false
	}
	l.next = max(l.next, w.next)
	// The notification may be about another listener's row, so each looks at its own first.
	return w.next > w.number && !w.shared, w.silent
}

// Close does nothing: the statement that may be waiting ends soon.
func (l *listener) Close() {}

// notifierWait is one statement that waits for a user-level lock, on a connection of its own.
type notifierWait struct {
	id     string
	number int64
	shared bool          // by several listeners; guarded by the notifier's mutex until done
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
		w.shared = true
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
	err := n.db.QueryRowContext(ctx, fmt.Sprintf("SELECT IF(IS_FREE_LOCK('%s'), -1, GET_LOCK('%s', %d) + COALESCE(RELEASE_LOCK('%s'), 0))",
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
		fmt.Fprintf(&cases, " WHEN NOT IS_FREE_LOCK('%s') THEN %d", userLock(w.id, number), number)
	}
	var number sql.NullInt64
	err := n.db.QueryRowContext(ctx, "SELECT CASE"+cases.String()+" END").Scan(&number)
	if err == nil && !number.Valid {
		return errors.New("the notifier has ended")
	}
	w.next = max(w.next, number.Int64)
	return err
}
