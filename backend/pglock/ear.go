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

// ear is strategy Row's bell: it listens for releases, for all waiters of a backend, with
// one goroutine and one connection, which it has while somebody waits and a little longer.
type ear struct {
	site    *site
	channel string
	rows    waker

	life context.Context // ended by Close
	end  context.CancelFunc
	done sync.WaitGroup

	mu     sync.Mutex
	now    *hearing // nil: there is no goroutine
	active int      // calls of Hear
	used   bool     // since the last look at it
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

func newEar(s *site, channel string, rows waker) *ear {
	e := &ear{site: s, channel: channel, rows: rows}
	e.life, e.end = context.WithCancel(context.Background())
	return e
}

// Tag is nothing: all releases are told to all who listen.
func (e *ear) Tag(sqlrow.Key) string { return "" }

// Ring does nothing: the statement that released has told.
func (e *ear) Ring(sqlrow.Key) {}

// Arm returns when the ear listens, or could not.
func (e *ear) Arm(ctx context.Context, _ sqlrow.Key) error {
	h := e.start()
	if h == nil {
		return driver.ErrClosed
	}
	select {
	case <-h.ready:
		return h.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// start is the hearing of the moment; nil if the ear is closed.
func (e *ear) start() *hearing {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.life.Err() != nil {
		return nil
	}
	e.used = true
	if e.now == nil {
		h := newHearing()
		e.now = h
		e.done.Go(func() { e.run(h) })
	}
	return e.now
}

// Hear waits while the ear listens.
func (e *ear) Hear(ctx context.Context, _ sqlrow.Key, _ string) bool {
	h := e.enter()
	defer e.leave()
	if h == nil {
		return false
	}
	select {
	case <-h.over:
		return false
	case <-ctx.Done():
		return true
	}
}

func (e *ear) enter() *hearing {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.active++
	return e.now
}

func (e *ear) leave() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.active--
	e.used = true
}

// Close ends the goroutine and the connection.
func (e *ear) Close() error {
	e.mu.Lock()
	e.end()
	e.mu.Unlock()
	e.done.Wait()
	return nil
}

// Pauses between tries to listen.
const (
	firstPause = 100 * time.Millisecond
	maxPause   = 2 * time.Second
)

// run listens again and again until nobody needs it any more.
func (e *ear) run(h *hearing) {
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		err := e.listen(h)
		select {
		case <-h.ready:
			pause = firstPause
		default:
			h.err = err
			close(h.ready)
		}
		close(h.over)
		if errors.Is(err, errUnused) || !e.rest(pause) {
			return
		}
		if h = e.next(); h == nil {
			return
		}
	}
}

// rest waits; false says that the ear was closed.
func (e *ear) rest(pause time.Duration) bool {
	select {
	case <-time.After(pause):
		return true
	case <-e.life.Done():
		return false
	}
}

// next begins another try, if anybody needs it.
func (e *ear) next() *hearing {
	if e.retire() {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.now = newHearing()
	return e.now
}

// retire makes the goroutine the last to be needed: true says that it is to end.
func (e *ear) retire() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.used || e.active > 0 {
		e.used = false
		return false
	}
	e.now = nil
	return true
}
