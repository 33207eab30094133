package drivertest

import (
	"bytes"
	"context"
	"errors"
	"runtime/pprof"
	"strings"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
)

var closeChecks = []promise{{
	name:  "close/leaves-others",
	text:  "Closing one connection frees no lock of another, and the other goes on working.",
	every: true,
	run: func(s *scene) {
		r := s.request()
		s.b.take(r, "a free lock is granted")
		s.a.take(s.requestFor("another"), "a free lock is granted")
		s.a.close()
		c := s.open("C")
		c.refused(s.rival(r), "closing one connection frees no lock of another")
		s.b.renew(r.Hold, nil, "closing one connection leaves the holds of another alone")
		s.b.free(r.Hold, nil, "closing one connection leaves the holds of another alone")
		c.take(s.rival(r), "a released lock is free")
	},
}, {
	name:  "close/releases-nothing",
	text:  "Close leaves holds to end with their TTL.",
	every: true,
	needs: need{ownTTL: true},
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		s.a.close()
		s.b.refused(s.rival(r), "Close does not release: whoever works under the lock may still do so")
		s.b.free(r.Hold, nil, "a hold outlives its connection")
	},
}, {
	name:  "close/ends-session",
	text:  "Close ends the session, and with it its holds.",
	every: true,
	needs: need{session: true},
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		s.a.close()
		s.b.eventually(s.rival(r), s.TTL, "Close ends the session and its holds")
	},
}, {
	name: "close/calls-after",
	text: "After Close every call answers ErrClosed.",
	run: func(s *scene) {
		r := s.request()
		s.a.close()
		s.a.fails(r, driver.ErrClosed, "a call after Close is refused")
		s.a.renew(r.Hold, driver.ErrClosed, "a call after Close is refused")
		s.a.free(r.Hold, driver.ErrClosed, "a call after Close is refused")
		s.a.optionalClosed(r)
		s.b.take(r, "a call after Close takes nothing")
	},
}, {
	name: "close/twice",
	text: "A second Close does no harm.",
	run: func(s *scene) {
		s.a.close()
		s.a.close()
	},
}, {
	name: "close/watch",
	text: "A watch can be closed after its connection.",
	run: func(s *scene) {
		r := s.request()
		s.b.take(r, "a free lock is granted")
		w := s.a.watch(s.rival(r))
		s.a.close()
		w.end()
		s.b.free(r.Hold, nil, "the holder releases")
		s.sleep(4 * s.pause())
		s.b.take(s.rival(r), "the watch of a closed connection takes nothing")
	},
}, {
	name: "close/goroutines",
	text: "A closed connection leaves no goroutine behind.",
	run:  leavesNoGoroutine,
}, {
	name:  "lost/never-without-loss",
	text:  "OnLost is not called for a hold that was held, renewed, asked for again and released.",
	every: true,
	run: func(s *scene) {
		var calls atomic.Int32
		r := s.request()
		r.OnLost = func() { calls.Add(1) }
		s.a.take(r, "a free lock is granted")
		s.a.renew(r.Hold, nil, "the holder renews")
		s.a.take(r, "the same Owner asked again is the same hold")
		s.b.refused(s.rival(r), "a lock has one holder at a time")
		s.a.free(r.Hold, nil, "the holder releases")
		s.b.take(s.rival(r), "a released lock is free")
		s.sleep(10 * s.pause())
		s.want(calls.Load() == 0, "OnLost tells that a hold is gone: it was called %d times for one that was released", calls.Load())
	},
}}

// optionalClosed wants ErrClosed of the optional calls, if they are there.
func (c *conn) optionalClosed(r driver.Request) {
	if c.over() {
		return
	}
	closed := func(name string, err error) {
		c.want(errors.Is(err, driver.ErrClosed) || errors.Is(err, driver.ErrSkip), "a call after Close is refused: %s answered %s; want ErrClosed", name, answer(err))
	}
	if w, ok := c.Backend.(driver.Watcher); ok {
		watch, err := w.Watch(c.ctx, r)
		closed("Watch", err)
		bell{watch, c}.end()
	}
	if c.caps.Revocable.Has(r.Mode) {
		closed("Revoke", c.ask(r.Hold))
	}
	if i, ok := c.Backend.(driver.Inspector); ok {
		_, err := i.Inspect(c.ctx, r.Name)
		closed("Inspect", err)
		closed("List", i.List(c.ctx, r.Name, func(string) bool { return true }))
	}
}

// leavesNoGoroutine uses a connection under a profiler label. Goroutines inherit it,
// so those that are left behind can be told from those of other checks.
func leavesNoGoroutine(s *scene) {
	r := s.request()
	s.a.take(r, "a free lock is granted")
	s.b.close()
	id := driver.NewOwner()
	pprof.Do(s.ctx, pprof.Labels("drivertest", id), func(context.Context) {
		c := s.open("C")
		c.refused(s.rival(r), "a lock has one holder at a time")
		if w, ok := c.Backend.(driver.Watcher); ok && !s.over() {
			if watch, err := w.Watch(s.ctx, s.rival(r)); err == nil {
				watch.Close()
			}
		}
		c.take(s.requestFor("another"), "a free lock is granted")
		c.close()
	})
	for began := time.Now(); !s.over(); s.sleep(s.pause()) {
		left := goroutines(id)
		if left == "" {
			return
		}
		s.want(time.Since(began) < s.Slack, "a closed connection leaves no goroutine behind: it left\n%s", left)
	}
}

// goroutines describes those with the label.
func goroutines(id string) string {
	var all bytes.Buffer
	pprof.Lookup("goroutine").WriteTo(&all, 1)
	var left []string
	for stack := range strings.SplitSeq(all.String(), "\n\n") {
		if strings.Contains(stack, id) {
			left = append(left, stack)
		}
	}
	return strings.Join(left, "\n\n")
}
