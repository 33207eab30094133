package pglock

import (
	"context"
	"database/sql"
	"sync"
)

// lender lets statements run on the connection that listens, so that a process that waits needs no other: as many can wait as the
// server has connections. The listener and one statement at a time use it in turn.
type lender struct {
	mu      sync.Mutex
	changed *sync.Cond
	conn    *sql.Conn          // nil: none is offered
	drain   func()             // hears what came with the answer to a statement
	stop    context.CancelFunc // ends the listener's turn; nil: it is not the listener's turn
	used    bool               // by a statement
}

func newLender() *lender {
	l := &lender{}
	l.changed = sync.NewCond(&l.mu)
	return l
}

// offer lets statements use conn from now on. drain is called after each: they could follow one another so fast that the listener
// had no turn.
func (l *lender) offer(conn *sql.Conn, drain func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn, l.drain = conn, drain
}

// withdraw returns when no statement uses the connection, and none will.
func (l *lender) withdraw() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = nil
	for l.changed.Broadcast(); l.used; {
		l.changed.Wait()
	}
}

// keep returns when no statement uses the connection, and keeps it for the listener until giveBack.
func (l *lender) keep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.used {
		l.changed.Wait()
	}
	l.used = true
}

// listen calls f for one turn of the listener. The context of f ends when a statement needs the connection. After an error the
// connection is withdrawn.
func (l *lender) listen(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.used {
		l.changed.Wait()
	}
	l.stop = stop
	l.mu.Unlock()
	err := f(ctx)
	l.mu.Lock()
	if l.stop = nil; err != nil {
		l.conn = nil
	}
	l.changed.Broadcast()
	return err
}

// borrow returns the connection; nil if there is none or another statement uses it, unless wait says to wait for that. giveBack must
// be called then, after the statement.
func (l *lender) borrow(ctx context.Context, wait bool) *sql.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if wait {
		defer context.AfterFunc(ctx, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.changed.Broadcast()
		})()
	}
	for wait && l.used && l.conn != nil && ctx.Err() == nil {
		l.changed.Wait()
	}
	if l.conn == nil || l.used {
		return nil
	}
	if l.used = true; l.stop != nil {
		for l.stop(); l.stop != nil; {
			l.changed.Wait()
		}
	}
	if l.conn == nil {
		l.used = false
		l.changed.Broadcast()
	}
	return l.conn
}

// giveBack ends a use of the connection.
func (l *lender) giveBack() {
	l.drain()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used = false
	l.changed.Broadcast()
}
