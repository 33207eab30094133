package pglock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/sqlrow"
)

// waker is whom an ear tells what it hears.
type waker interface {
	Wake(sqlrow.Key)
	WakeAll()
}

// releaseListener is strategy Row's: it listens for releases, for all waiters of a backend, with one
// goroutine and one connection, which it has while somebody waits and a little longer.
type releaseListener struct {
	site    *database
	channel string
	rows    waker

	life context.Context // ended by Close
	end  context.CancelFunc
	done sync.WaitGroup

	mu   sync.Mutex
	now  *subscription // nil: there is no goroutine
	ears int
	used bool // since the last look at it
}

// subscription is one try to listen.
type subscription struct {
	ready chan struct{} // closed when it listens, or has failed
	err   error         // why it has failed; set before ready is closed
	over  chan struct{} // closed when it listens no more
}

func newHearing() *subscription {
	return &subscription{ready: make(chan struct{}), over: make(chan struct{})}
}

func newBell(s *database, channel string, rows waker) *releaseListener {
	b := &releaseListener{site: s, channel: channel, rows: rows}
	b.life, b.end = context.WithCancel(context.Background())
	return b
}

// Address is nothing: all releases are told to all who listen.
func (b *releaseListener) Address(sqlrow.Key) string { return "" }

// Notify does nothing: the statement that released has told.
func (b *releaseListener) Notify(sqlrow.Key) {}

// Listen makes an ear; all share the connection.
func (b *releaseListener) Listen(sqlrow.Key) sqlrow.Listener {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ears++
	return &releaseWaiter{bell: b}
}

// start is the hearing of the moment.
func (b *releaseListener) start() (*subscription, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life.Err() != nil {
		return nil, driver.ErrClosed
	}
	if b.now == nil {
		h := newHearing()
		b.now = h
		b.done.Go(func() { b.run(h) })
	}
	return b.now, nil
}

// releaseWaiter waits for one lock, of which the bell tells the backend itself.
type releaseWaiter struct {
	bell *releaseListener
	now  *subscription // as of the last Arm
}

// Arm returns when the bell listens, or could not.
func (e *releaseWaiter) Arm(ctx context.Context) (err error) {
	if e.now, err = e.bell.start(); err != nil {
		return err
	}
	select {
	case <-e.now.ready:
		return e.now.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Wait waits while the bell listens.
func (e *releaseWaiter) Wait(ctx context.Context, _ string) (rang, silent bool) {
	select {
	case <-e.now.over:
		return false, true
	case <-ctx.Done():
		return false, false
	}
}

// Close leaves the connection to others, who may come soon.
func (e *releaseWaiter) Close() {
	e.bell.mu.Lock()
	defer e.bell.mu.Unlock()
	e.bell.ears--
	e.bell.used = true
}

// Close ends the goroutine and the connection.
func (b *releaseListener) Close() error {
	b.mu.Lock()
	b.end()
	b.mu.Unlock()
	b.done.Wait()
	return nil
}

// Pauses between tries to listen.
const (
	firstPause = 100 * time.Millisecond
	maxPause   = 2 * time.Second
)

// run listens again and again until nobody needs it any more.
func (b *releaseListener) run(h *subscription) {
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		err := b.listen(h)
		select {
		case <-h.ready:
			pause = firstPause
		default:
			h.err = err
			close(h.ready)
		}
		close(h.over)
		if errors.Is(err, errUnused) || !b.rest(pause) {
			return
		}
		if h = b.next(); h == nil {
			return
		}
	}
}

// rest waits; false says that the ear was closed.
func (b *releaseListener) rest(pause time.Duration) bool {
	select {
	case <-time.After(pause):
		return true
	case <-b.life.Done():
		return false
	}
}

// next begins another try, if anybody needs it.
func (b *releaseListener) next() *subscription {
	if b.retire() {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = newHearing()
	return b.now
}

// retire makes the goroutine the last to be needed: true says that it is to end.
func (b *releaseListener) retire() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used || b.ears > 0 {
		b.used = false
		return false
	}
	b.now = nil
	return true
}
