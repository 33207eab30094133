package pglock

import (
	"context"
	"crypto/rand"
	sqldriver "database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/sqlrow"
	"github.com/distlock/distlock/internal/wait"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
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

// rowWaker is the part of sqlrow's backend that wakes waiters.
type rowWaker interface {
	Wake(sqlrow.Key)
	WakeOwner(k sqlrow.Key, end string)
	WakeAll()
}

// releaseListener listens for releases on behalf of all waiters of strategy Row. It has one goroutine and
// one connection, while there are waiters and a little longer. It hears of the turns of its own places, and of changes that
// concern all.
type releaseListener struct {
	db      *database
	channel string // of all; that of the own places has the address behind it
	address string
	backend rowWaker

	ctx    context.Context // ended by Close
	cancel context.CancelFunc
	done   wait.Group

	mu      sync.Mutex
	current *subscription // nil: there is no goroutine
	waiters int
	used    bool // since the last check
}

// subscription is one attempt to listen.
type subscription struct {
	ready chan struct{} // closed when it listens or has failed
	err   error         // why it failed; set before ready is closed
	ended chan struct{} // closed when it does not listen any more
}

func newSubscription() *subscription {
	return &subscription{ready: make(chan struct{}), ended: make(chan struct{})}
}

func newReleaseListener(db *database, channel string, backend rowWaker) *releaseListener {
	var random [8]byte
	rand.Read(random[:])
	l := &releaseListener{db: db, channel: channel, address: hex.EncodeToString(random[:]), backend: backend}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// Address returns what the releases of others name the own channel by.
func (l *releaseListener) Address(time.Duration) string { return l.address }

// Notify does nothing: the releasing statement has notified.
func (l *releaseListener) Notify(sqlrow.Key) {}

// Listen returns a listener for one lock. All share the connection.
func (l *releaseListener) Listen(sqlrow.Key) sqlrow.Listener {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiters++
	return &releaseWaiter{listener: l}
}

// Close ends the goroutine and the connection.
func (l *releaseListener) Close() error {
	l.mu.Lock()
	l.cancel()
	l.mu.Unlock()
	l.done.Wait()
	return nil
}

// releaseWaiter waits for one lock. The listener wakes the backend itself.
type releaseWaiter struct {
	listener *releaseListener
	current  *subscription // as of the last Arm
}

// Arm returns when the connection listens, or could not.
func (w *releaseWaiter) Arm(ctx context.Context) (err error) {
	if w.current, err = w.listener.subscribe(); err != nil {
		return err
	}
	select {
	case <-w.current.ready:
		return w.current.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Wait waits as long as the connection listens.
func (w *releaseWaiter) Wait(ctx context.Context, _ string) (rang, silent bool) {
	select {
	case <-w.current.ended:
		return false, true
	case <-ctx.Done():
		return false, false
	}
}

// Close leaves the connection for waiters that may come soon.
func (w *releaseWaiter) Close() {
	w.listener.mu.Lock()
	defer w.listener.mu.Unlock()
	w.listener.waiters--
	w.listener.used = true
}

// subscribe returns the current subscription, and starts one if there is none.
func (l *releaseListener) subscribe() (*subscription, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		return nil, driver.ErrClosed
	}
	if l.current == nil {
		s := newSubscription()
		l.current = s
		l.done.Go(func() { l.run(s) })
	}
	return l.current, nil
}

// run listens, on one connection after the other, until there are no waiters any more.
func (l *releaseListener) run(s *subscription) {
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		err := l.listen(s)
		select {
		case <-s.ready:
			pause = firstPause
		default:
			s.err = err
			close(s.ready)
		}
		close(s.ended)
		if errors.Is(err, errUnused) {
			return
		}
		if wait.Sleep(l.ctx, pause) != nil || l.stopIfUnused() {
			return
		}
		s = newSubscription()
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

// listen listens on a connection of the pool until the connection ends, or there are no waiters. The
// connection is closed and not returned.
func (l *releaseListener) listen(s *subscription) error {
	ctx, cancel := context.WithTimeout(l.ctx, poolTimeout)
	conn, err := l.db.db.Conn(ctx)
	cancel()
	if err != nil {
		return fmt.Errorf("no connection to listen: %w", err)
	}
	defer conn.Close()
	why := errors.New("the pool's connections are not pgx's")
	conn.Raw(func(raw any) error {
		if c, ok := raw.(*stdlib.Conn); ok {
			why = l.listenOn(c.Conn(), s)
			closing, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			c.Conn().Close(closing)
		}
		return sqldriver.ErrBadConn
	})
	return why
}

func (l *releaseListener) listenOn(pg *pgx.Conn, s *subscription) error {
	text := fmt.Sprintf("LISTEN %s; LISTEN %s_%s", l.channel, l.channel, l.address)
	if l.db.version >= 14_00_00 {
		text = "SET idle_session_timeout = 0; " + text
	}
	if err := l.exec(pg, text); err != nil {
		return fmt.Errorf("LISTEN: %w", err)
	}
	close(s.ready)
	for {
		if err := l.receive(pg); err != nil {
			return err
		}
	}
}

// receive wakes waiters for a while, and then checks that there are some, and that the connection works.
func (l *releaseListener) receive(pg *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(l.ctx, idleCheck)
	defer cancel()
	for {
		n, err := pg.WaitForNotification(ctx)
		switch {
		case err == nil:
			l.wake(n)
		case ctx.Err() == nil || l.ctx.Err() != nil:
			return err
		case l.stopIfUnused():
			return errUnused
		default:
			// The server's list of sessions shows what this one is for.
			return l.exec(pg, "-- LISTEN "+l.channel+" goes on")
		}
	}
}

// wake wakes the waiters that a notification is for. It is nil if a handler of the user's has taken it.
func (l *releaseListener) wake(n *pgconn.Notification) {
	if n == nil {
		l.backend.WakeAll()
		return
	}
	key, end, one := strings.Cut(n.Payload, " ")
	if k, ok := parseKey(key); ok && one {
		l.backend.WakeOwner(k, end)
	} else if ok {
		l.backend.Wake(k)
	}
}

// parseKey reads a key in the server's hex encoding. Other programs may send anything.
func parseKey(text string) (sqlrow.Key, bool) {
	k, err := hex.DecodeString(text)
	if err != nil || len(k) != len(sqlrow.Key{}) {
		return sqlrow.Key{}, false
	}
	return sqlrow.Key(k), true
}

func (l *releaseListener) exec(pg *pgx.Conn, query string) error {
	ctx, cancel := context.WithTimeout(l.ctx, execTimeout)
	defer cancel()
	return pg.PgConn().Exec(ctx, query).Close()
}
