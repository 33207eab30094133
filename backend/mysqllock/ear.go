package mysqllock

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
)

const (
	earSlice = 5  // in s: how long a statement waits for a bell
	earProbe = 64 // how many rings a row may be behind
)

// ear listens for one lock. It goes on where it stopped: what rang before it was heard
// last does not count again.
type ear struct {
	bell *bell
	base string // of the bell that was heard last
	next int64  // the first of its locks that has not been heard
	wait *wait  // under way, maybe for longer than somebody listens
}

// wait is one statement that waits for a bell. Its results are there when done is closed.
type wait struct {
	base   string
	number int64
	cancel context.CancelFunc
	done   chan struct{}

	rang, silent bool
	next         int64
}

// Arm needs nothing: what is rung before the ear listens is seen by the number.
func (e *ear) Arm(context.Context) error { return nil }

// Wait waits for the user-level lock that the tag names. A statement that waits
// goes on when ctx ends, since the next call most often wants the same.
func (e *ear) Wait(ctx context.Context, tag string) (rang, silent bool) {
	b, number, ok := splitTag(tag)
	switch {
	case !ok:
		return false, true
	case e.bell.ringer.own(b):
		// The own releases are told without a bell.
		<-ctx.Done()
		return false, false
	case b != e.base:
		e.Close()
		e.base, e.next = b, 0
	}
	if e.wait == nil {
		e.begin(max(number, e.next))
	}
	select {
	case <-e.wait.done:
	case <-ctx.Done():
		return false, false
	}
	w := e.wait
	e.wait, e.next = nil, w.next
	return w.rang, w.silent
}

// Close ends the statement that may still be waiting, and its connection.
func (e *ear) Close() {
	if e.wait != nil {
		e.wait.cancel()
		e.wait = nil
	}
}

// begin starts to wait for a lock.
func (e *ear) begin(number int64) {
	w := &wait{base: e.base, number: number, next: number, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(e.bell.ctx)
	w.cancel, e.wait = cancel, w
	serve := func() {
		defer cancel()
		e.bell.serve(ctx, w)
	}
	if !e.bell.start(serve) {
		cancel()
		w.silent = true
		close(w.done)
	}
}

// serve waits on a connection, if there is one to spare.
func (b *bell) serve(ctx context.Context, w *wait) {
	told := false
	tell := func(rang, silent bool) {
		if !told {
			told, w.rang, w.silent = true, rang, silent
			close(w.done)
		}
	}
	defer tell(false, true)
	select {
	case b.ears <- struct{}{}:
		defer func() { <-b.ears }()
	default:
		return
	}
	if !pin(b.db) {
		return
	}
	defer unpin(b.db)
	conn, err := b.db.Conn(ctx)
	if err != nil {
		return
	}
	if err := w.listen(ctx, conn, tell); err != nil {
		drop(conn)
		return
	}
	_ = conn.Close()
}

// The answers to a statement that waits.
const (
	wasFree = iota
	timedOut
	wasRung
)

// listen waits for the lock. If that is free it has rung already, or its ringer is dead:
// then none of the next is held either.
func (w *wait) listen(ctx context.Context, conn *sql.Conn, tell func(rang, silent bool)) error {
	name := lockName(w.base, w.number)
	var answer sql.NullInt64
	err := conn.QueryRowContext(ctx, fmt.Sprintf("SELECT IF(IS_FREE_LOCK('%s'), %d, %d + GET_LOCK('%s', %d))",
		name, wasFree, timedOut, name, earSlice)).Scan(&answer)
	switch {
	case err != nil:
		return err
	case !answer.Valid:
		return nil // interrupted
	case answer.Int64 == timedOut:
		tell(false, false)
		return nil
	case answer.Int64 == wasFree:
		return w.probe(ctx, conn, tell)
	}
	w.next = w.number + 1
	tell(true, false)
	// Nobody else will use this lock, but the connection is to be as it was.
	_, err = conn.ExecContext(ctx, "DO RELEASE_LOCK('"+name+"')")
	return err
}

// probe finds the lock that a living ringer has now.
func (w *wait) probe(ctx context.Context, conn *sql.Conn, tell func(rang, silent bool)) error {
	var cases []string
	for i := range int64(earProbe) {
		number := w.number + 1 + i
		cases = append(cases, fmt.Sprintf("WHEN NOT IS_FREE_LOCK('%s') THEN %d", lockName(w.base, number), number))
	}
	var number sql.NullInt64
	err := conn.QueryRowContext(ctx, "SELECT CASE "+strings.Join(cases, " ")+" END").Scan(&number)
	if err != nil || !number.Valid {
		return err
	}
	w.next = number.Int64
	tell(true, false)
	return nil
}
