package pglock

import (
	"cmp"
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

const (
	execTimeout = 5 * time.Second // of the listener's own statements
	poolTimeout = 2 * time.Second // for a connection of the pool: waiters poll meanwhile

	firstPause = 100 * time.Millisecond // between tries to listen
	maxPause   = 2 * time.Second
)

// idleCheck is how long a connection is listened to before it is checked. It is closed if it had no
// waiters in two checks.
var idleCheck = 5 * time.Second

// releaseListener listens on behalf of all waiters of strategy Row. It has one goroutine and one connection, while there are
// waiters and a little longer.
type releaseListener struct {
	db      *database
	channel string // the address comes behind it
	lender  *lender

	ctx    context.Context // ended by close
	cancel context.CancelFunc
	done   wait.Group

	mu      sync.Mutex
	address string
	heard   func(end string)
	current *subscription // nil: there is no goroutine
	waiters int
	used    bool // since the last check
}

// subscription is one attempt to listen.
type subscription struct {
	ready chan struct{} // closed when it listens or has failed
	err   error         // why it failed; set before ready is closed
}

func newReleaseListener(db *database, channel string) *releaseListener {
	l := &releaseListener{db: db, channel: channel, lender: newLender()}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// close ends the goroutine and the connection.
func (l *releaseListener) close() {
	l.mu.Lock()
	l.cancel()
	l.mu.Unlock()
	l.done.Wait()
}

// listen returns when the connection listens, or could not. stop leaves the connection for waiters that may come soon.
func (l *releaseListener) listen(ctx context.Context, address string, heard func(end string)) (stop func(), err error) {
	s, err := l.subscribe(address, heard)
	if err != nil {
		return nil, err
	}
	select {
	case <-s.ready:
		err = s.err
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		l.leave()
		return nil, err
	}
	return l.leave, nil
}

func (l *releaseListener) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiters--
	l.used = true
}

// subscribe returns the current subscription, and starts one if there is none.
func (l *releaseListener) subscribe(address string, heard func(end string)) (*subscription, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		return nil, driver.ErrClosed
	}
	l.waiters++
	if l.current == nil {
		l.address, l.heard = address, heard
		s := &subscription{ready: make(chan struct{})}
		l.current = s
		l.done.Go(func() { l.run(s) })
	}
	return l.current, nil
}

// run listens, on one connection after the other, until there are no waiters any more.
func (l *releaseListener) run(s *subscription) {
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		err := l.hear(s)
		select {
		case <-s.ready:
			pause = firstPause
		default:
			s.err = err
			close(s.ready)
		}
		if errors.Is(err, errUnused) {
			return
		}
		l.heard("")
		if wait.Sleep(l.ctx, pause) != nil || l.stopIfUnused() {
			return
		}
		s = &subscription{ready: make(chan struct{})}
		l.mu.Lock()
		l.current = s
		l.mu.Unlock()
	}
}

// stopIfUnused reports whether the goroutine must end: there are no waiters, and were none since the last
// check.
func (l *releaseListener) stopIfUnused() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.used || l.waiters > 0 {
		l.used = false
		return false
	}
	l.current = nil
	return true
}

// errUnused ends a subscription without waiters.
var errUnused = errors.New("there are no waiters")

// hear listens on a connection of the pool until the connection ends, or there are no waiters. The
// connection is closed and not returned.
func (l *releaseListener) hear(s *subscription) error {
	ctx, cancel := context.WithTimeout(l.ctx, poolTimeout)
	conn, err := l.db.db.Conn(ctx)
	cancel()
	if err != nil {
		return fmt.Errorf("no connection to listen: %w", err)
	}
	defer conn.Close()
	var pg *pgx.Conn
	why := errors.New("the pool's connections are not pgx's")
	conn.Raw(func(raw any) error {
		if c, ok := raw.(*stdlib.Conn); ok {
			pg = c.Conn()
		}
		return nil
	})
	if pg != nil {
		why = l.hearOn(conn, pg, s)
		closing, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		pg.Close(closing)
	}
	conn.Raw(func(any) error { return sqldriver.ErrBadConn })
	return why
}

func (l *releaseListener) hearOn(conn *sql.Conn, pg *pgx.Conn, s *subscription) error {
	text := fmt.Sprintf("LISTEN %s_%s", l.channel, l.address)
	if l.db.version >= 14_00_00 {
		text = "SET idle_session_timeout = 0; " + text
	}
	if err := l.exec(pg, text); err != nil {
		return fmt.Errorf("LISTEN: %w", err)
	}
	ended, end := context.WithCancel(l.ctx)
	end()
	l.lender.offer(conn, func() { _ = l.hearAll(ended, pg) })
	defer l.lender.withdraw()
	close(s.ready)
	l.heard("") // of what it did not hear before
	for {
		if err := l.receive(pg); err != nil {
			return err
		}
		if l.stopIfUnused() {
			return errUnused
		}
		if err := l.check(pg); err != nil {
			return err
		}
	}
}

// receive wakes waiters for a while, in which the connection is lent.
func (l *releaseListener) receive(pg *pgx.Conn) (err error) {
	ctx, cancel := context.WithTimeout(l.ctx, idleCheck)
	defer cancel()
	for err == nil && ctx.Err() == nil {
		err = l.lender.listen(ctx, func(ctx context.Context) error { return l.hearAll(ctx, pg) })
	}
	return cmp.Or(err, l.ctx.Err())
}

// check looks whether the connection works. The server's list of sessions shows what it is for.
func (l *releaseListener) check(pg *pgx.Conn) error {
	l.lender.keep()
	defer l.lender.giveBack()
	return l.exec(pg, "-- LISTEN "+l.channel+" goes on")
}

// hearAll wakes waiters until ctx ends or the connection does, which is an error.
func (l *releaseListener) hearAll(ctx context.Context, pg *pgx.Conn) error {
	for {
		n, err := pg.WaitForNotification(ctx)
		switch {
		case err == nil && n == nil: // a handler of the user's has taken it
			l.heard("")
		case err == nil:
			l.heard(n.Payload)
		case ctx.Err() != nil && !pg.IsClosed():
			return nil
		default:
			return err
		}
	}
}

func (l *releaseListener) exec(pg *pgx.Conn, query string) error {
	ctx, cancel := context.WithTimeout(l.ctx, execTimeout)
	defer cancel()
	return pg.PgConn().Exec(ctx, query).Close()
}
