package page

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/internal/testkit/expect"
)

// viewerOf returns one who may see everything, or nothing.
func viewerOf(all bool) Viewer {
	can := func(string) bool { return all }
	return Viewer{See: can, Ask: can, Break: can}
}

// counting counts what the poller costs the backend.
type counting struct {
	*memlock.Backend
	lists atomic.Int32
}

func (c *counting) List(ctx context.Context, prefix string, yield func(string) bool) error {
	c.lists.Add(1)
	return c.Backend.List(ctx, prefix, yield)
}

// A thousand viewers cost what one does, and none cost nothing.
func TestPollerIsShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &counting{Backend: memlock.New()}
		poller := &pageOf(b).poller
		var leave []func()
		viewers := make([]*viewer, 1000)
		for i := range viewers {
			viewers[i] = &viewer{}
			leave = append(leave, poller.join(viewers[i]))
		}
		time.Sleep(9500 * time.Millisecond)
		expect.Equal(t, b.lists.Load(), 10, "lists in 10 seconds")
		for _, v := range viewers {
			<-v.fresh
		}
		for _, l := range leave {
			l()
		}
		time.Sleep(time.Minute)
		if n := b.lists.Load(); n > 11 {
			t.Errorf("%d lists without a viewer", n-10)
		}
		leave[0] = poller.join(viewers[0])
		synctest.Wait()
		<-viewers[0].fresh
		leave[0]()
	})
}

// A backend that is slow is left alone for most of the time, and its last answer is shown.
func TestPollerIsGentle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &slow{Backend: memlock.New()}
		poller := &pageOf(b).poller
		leave := poller.join(&viewer{})
		time.Sleep(99 * time.Second)
		expect.Equal(t, b.lists.Load(), 10, "lists of a second in 100 seconds")
		b.broken.Store(true)
		time.Sleep(11 * time.Second)
		if snap := poller.latest.Load(); snap.failed(viewerOf(true)) != "no route" || snap.failed(viewerOf(false)) != "–" {
			t.Errorf("%+v", snap)
		}
		leave()
		time.Sleep(time.Minute)
	})
}

type slow struct {
	*memlock.Backend
	lists  atomic.Int32
	broken atomic.Bool
}

func (s *slow) List(context.Context, string, func(string) bool) error {
	s.lists.Add(1)
	time.Sleep(time.Second)
	if s.broken.Load() {
		return errors.New("no route")
	}
	return nil
}
