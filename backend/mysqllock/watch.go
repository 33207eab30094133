package mysqllock

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/engine"
)

const (
	waitSeconds = 5   // how long one statement waits for a user-level lock
	searchRange = 512 // how many notifications a row's address may be behind

	// attemptTime is how long who was woken has for its attempt, after which it follows the same notifier again.
	attemptTime = time.Second

	// maxWaits is for how many other processes a backend waits at once, for the first in its notifier's session and for each other
	// one on a connection of its own. Waiters beyond that poll.
	maxWaits = 4

	// restTime is how long the pool keeps an unused connection while the session waits.
	restTime = time.Second
)

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
	defer f.notifier.leave(w)
	if w.number <= f.next {
		if next, ended := f.until(ctx, w, address); !ended {
			return next, next == ""
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

// until returns when w has ended. ended is false if the waiter is behind another before that, or has left.
func (f *follower) until(ctx context.Context, w *notifierWait, address string) (next string, ended bool) {
	for {
		select {
		case <-w.done:
			return "", true
		case next = <-f.waiter.Follow:
			if next != address {
				return next, false
			}
		case <-ctx.Done():
			return "", false
		}
	}
}

// notifierWait is one statement that waits for a user-level lock.
type notifierWait struct {
	id     string
	number int64
	done   chan struct{} // closed when next and silent are set

	followers int   // guarded by notifier.mu
	next      int64 // the lock to wait for next; greater than number after a notification
	silent    bool  // nothing can be waited for
}

// join returns the statement that waits for a notifier. It starts one if there is none, and returns
// nil if it can't.
func (n *notifier) join(id string, number int64) *notifierWait {
	n.mu.Lock()
	defer n.mu.Unlock()
	if w := n.waits[id]; w != nil {
		w.followers++
		return w
	}
	w := &notifierWait{id: id, number: number, next: number, done: make(chan struct{}), followers: 1}
	switch {
	case len(n.waits) == maxWaits:
		return nil
	case n.turn == nil && n.running:
		n.turn = w
		n.asked.Notify()
	case !n.start(func() { n.wait(w) }):
		return nil
	}
	n.waits[id] = w
	return w
}

// leave is called once for each join. A wait that nobody follows does not keep the session.
func (n *notifier) leave(w *notifierWait) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if w.followers--; w.followers > 0 || n.turn != w {
		return
	}
	if n.waiting != 0 {
		n.interrupt()
		return
	}
	n.turn = nil
	delete(n.waits, w.id)
}

// wait waits on a connection of the pool.
func (n *notifier) wait(w *notifierWait) {
	err := errFullPool
	if reserveConn(n.db) {
		defer unreserveConn(n.db)
		err = n.await(n.db, w)
	}
	n.end(w, err)
}

// end answers the listeners of w.
func (n *notifier) end(w *notifierWait, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.waits[w.id] == w {
		delete(n.waits, w.id)
	}
	if n.turn == w {
		n.turn = nil
	}
	w.silent = w.silent || err != nil
	close(w.done)
}

// wait waits in the session, if that is asked for and nothing is to be notified, which interrupts the wait later.
func (s *notifierSession) wait() {
	n := s.n
	n.mu.Lock()
	w := n.turn
	if w == nil || len(n.pending) > 0 {
		n.mu.Unlock()
		return
	}
	n.waiting = s.server
	n.mu.Unlock()
	n.rest(restTime)
	err := n.await(s.conn, w)
	n.rest(0)
	n.mu.Lock()
	n.waiting = 0
	over := n.interrupted
	n.mu.Unlock()
	if over != nil {
		<-over
		s.clear(w)
		n.mu.Lock()
		n.interrupted = nil
		n.mu.Unlock()
	} else if number(err) == errUserDeadlock || number(err) == errDeadlock {
		// Two sessions wait for each other. One that has no lock itself can wait.
		n.mu.Lock()
		n.turn = nil
		apart := n.start(func() { n.wait(w) })
		n.mu.Unlock()
		if apart {
			return
		}
	}
	s.failed(err)
	s.waited = w
}

// clear makes sure that an interruption meets no other statement, and that the session does not keep the lock of w, which the server
// may have granted just before.
func (s *notifierSession) clear(w *notifierWait) {
	ctx, cancel := context.WithTimeout(s.n.ctx, notifierTimeout)
	defer cancel()
	for range 2 {
		_, err := s.conn.ExecContext(ctx, "DO RELEASE_LOCK("+userLock(w.id, w.number)+")")
		if s.failed(err); err == nil {
			return
		}
	}
}

// await waits for the lock once, and then looks for the next one.
func (n *notifier) await(on querier, w *notifierWait) error {
	ctx, cancel := context.WithTimeout(n.ctx, waitSeconds*time.Second+notifierTimeout)
	defer cancel()
	// A session that was granted the lock passes it on at once.
	name := userLock(w.id, w.number)
	var waited sql.NullInt64
	err := on.QueryRowContext(ctx, fmt.Sprintf("SELECT IF(IS_FREE_LOCK(%s), -1, GET_LOCK(%s, %d) + COALESCE(RELEASE_LOCK(%s), 0))",
		name, name, waitSeconds, name)).Scan(&waited)
	switch {
	case err != nil:
		return err
	case waited.Int64 > 0:
		w.next++
	case waited.Int64 < 0:
		return w.search(ctx, on)
	}
	return nil
}

// search finds the lock that the notifier has now, if the one to wait for is free.
func (w *notifierWait) search(ctx context.Context, on querier) error {
	var cases strings.Builder
	for number := w.number + 1; number <= w.number+searchRange; number++ {
		fmt.Fprintf(&cases, " WHEN NOT IS_FREE_LOCK(%s) THEN %d", userLock(w.id, number), number)
	}
	var number sql.NullInt64
	err := on.QueryRowContext(ctx, "SELECT CASE"+cases.String()+" END").Scan(&number)
	w.silent = err == nil && !number.Valid // the notifier has ended
	w.next = max(w.next, number.Int64)
	return err
}
