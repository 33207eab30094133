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

// bell is strategy Row's: it listens for releases, for all waiters of a backend, with one
// goroutine and one connection, which it has while somebody waits and a little longer.
type bell struct {
	site    *site
	channel string
	rows    waker

	life context.Context // ended by Close
	end  context.CancelFunc
	done sync.WaitGroup

	mu   sync.Mutex
	now  *hearing // nil: there is no goroutine
	ears int
	used bool // since the last look at it
}

// hearing is one try to listen.
type hearing struct {
	ready chan struct{} // closed when it listens, or has failed
	err   error         // why it has failed; set before ready is closed
	over  chan struct{} // closed when it listens no more
}

func newHearing() *hearing {
	return &hearing{ready: make(chan struct{}), over: make(chan struct{})}
}

func newBell(s *site, channel string, rows waker) *bell {
	b := &bell{site: s, channel: channel, rows: rows}
	b.life, b.end = context.WithCancel(context.Background())
	return b
}

// Address is nothing: all releases are told to all who listen.
func (b *bell) Address(sqlrow.Key) string { return "" }

// Notify does nothing: the statement that released has told.
func (b *bell) Notify(sqlrow.Key) {}

// Listen makes an ear; all share the connection.
func (b *bell) Listen(sqlrow.Key) sqlrow.Listener {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ears++
	return &ear{bell: b}
}

// start is the hearing of the moment.
func (b *bell) start() (*hearing, error) {
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

// ear waits for one lock, of which the bell tells the backend itself.
type ear struct {
	bell *bell
	now  *hearing // as of the last Arm
}

// Arm returns when the bell listens, or could not.
func (e *ear) Arm(ctx context.Context) (err error) {
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
func (e *ear) Wait(ctx context.Context, _ string) (rang, silent bool) {
	select {
	case <-e.now.over:
		return false, true
	case <-ctx.Done():
		return false, false
	}
}

// Close leaves the connection to others, who may come soon.
func (e *ear) Close() {
	e.bell.mu.Lock()
	defer e.bell.mu.Unlock()
	e.bell.ears--
	e.bell.used = true
}

// Close ends the goroutine and the connection.
func (b *bell) Close() error {
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
func (b *bell) run(h *hearing) {
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
func (b *bell) rest(pause time.Duration) bool {
	select {
	case <-time.After(pause):
		return true
	case <-b.life.Done():
		return false
	}
}

// next begins another try, if anybody needs it.
func (b *bell) next() *hearing {
	if b.retire() {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = newHearing()
	return b.now
}

// retire makes the goroutine the last to be needed: true says that it is to end.
func (b *bell) retire() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used || b.ears > 0 {
		b.used = false
		return false
	}
	b.now = nil
	return true
}
