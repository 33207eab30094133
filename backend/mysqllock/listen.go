package mysqllock

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
)

const (
	waitSeconds = 5   // how long one statement waits for a user-level lock
	searchRange = 512 // how many notifications a row's address may be behind
)

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
	return w.notified && !w.shared, w.silent
}

// Close does nothing: the statement that may be waiting ends soon.
func (l *listener) Close() {}

// notifierWait is one statement that waits for a user-level lock.
type notifierWait struct {
	id     string
	number int64
	shared bool          // by several listeners; guarded by the notifier's mutex until done
	done   chan struct{} // closed when the fields below are set

	notified, silent bool
	next             int64 // the lock to wait for next
}

// join returns the statement that waits for a notifier. It starts one if there is none.
func (n *notifier) join(id string, number int64) *notifierWait {
	n.mu.Lock()
	defer n.mu.Unlock()
	if w := n.waits[id]; w != nil {
		w.shared = true
		return w
	}
	w := &notifierWait{id: id, number: number, next: number, done: make(chan struct{})}
	if n.start(func() { n.wait(w) }) {
		n.waits[id] = w
	} else {
		w.silent = true
		close(w.done)
	}
	return w
}

// finish answers the listeners of w, once.
func (n *notifier) finish(w *notifierWait, notified, silent bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.waits[w.id] == w {
		delete(n.waits, w.id)
		w.notified, w.silent = notified, silent
		close(w.done)
	}
}

// wait waits on a connection, if there is one to spare.
func (n *notifier) wait(w *notifierWait) {
	defer n.finish(w, false, true)
	select {
	case n.conns <- struct{}{}:
		defer func() { <-n.conns }()
	default:
		return
	}
	if !reserveConn(n.db) {
		return
	}
	defer unreserveConn(n.db)
	conn, err := n.db.Conn(n.ctx)
	if err != nil {
		return
	}
	if err := n.waitOn(conn, w); err != nil {
		discard(conn)
		return
	}
	_ = conn.Close()
}

// The answers to the statement that waits.
const (
	wasFree = iota
	timedOut
	wasReleased
)

// waitOn waits for the lock. If the lock is free, its notifier has released it already or has ended.
func (n *notifier) waitOn(conn *sql.Conn, w *notifierWait) error {
	name := userLock(w.id, w.number)
	var answer sql.NullInt64
	err := conn.QueryRowContext(n.ctx, fmt.Sprintf("SELECT IF(IS_FREE_LOCK('%s'), %d, %d + GET_LOCK('%s', %d))",
		name, wasFree, timedOut, name, waitSeconds)).Scan(&answer)
	switch {
	case err != nil:
		return err
	case !answer.Valid:
		return nil // the statement was killed
	case answer.Int64 == timedOut:
		n.finish(w, false, false)
		return nil
	case answer.Int64 == wasFree:
		return n.search(conn, w)
	}
	w.next = w.number + 1
	n.finish(w, true, false)
	_, err = conn.ExecContext(n.ctx, "DO RELEASE_LOCK('"+name+"')")
	return err
}

// search finds the lock that the notifier has now. If there is none, the notifier has ended.
func (n *notifier) search(conn *sql.Conn, w *notifierWait) error {
	var cases strings.Builder
	for number := w.number + 1; number <= w.number+searchRange; number++ {
		fmt.Fprintf(&cases, " WHEN NOT IS_FREE_LOCK('%s') THEN %d", userLock(w.id, number), number)
	}
	var number sql.NullInt64
	err := conn.QueryRowContext(n.ctx, "SELECT CASE"+cases.String()+" END").Scan(&number)
	if err == nil && number.Valid {
		w.next = number.Int64
		n.finish(w, true, false)
	}
	return err
}
