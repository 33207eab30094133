package drivertest

import (
	"context"
	"time"

	"github.com/distlock/distlock/driver"
)

var watchChecks = []promise{{
	name:  "watch/release",
	text:  "A release on another connection is signalled, and the lock can be taken.",
	every: true,
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		waiter := s.rival(r)
		w := s.b.watch(waiter)
		s.a.free(r.Hold, nil, "the holder releases")
		w.rings("a release is signalled")
		s.b.take(waiter, "after the signal the lock is granted")
		w.end()
	},
}, {
	name: "watch/same-connection",
	text: "A release on the watching connection is signalled too.",
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		w := s.a.watch(s.rival(r))
		s.a.free(r.Hold, nil, "the holder releases")
		w.rings("a release is signalled, also on the same connection")
		w.end()
	},
}, {
	name: "watch/armed-on-return",
	text: "When Watch has returned it is armed: a release right after that is not missed.",
	run: func(s *scene) {
		for range 15 {
			r := s.request()
			s.a.take(r, "a free lock is granted")
			waiter := s.rival(r)
			w := s.b.watch(waiter)
			s.a.free(r.Hold, nil, "the holder releases")
			w.rings("Watch is armed when it returns: the release right after it was missed")
			w.end()
			s.b.take(waiter, "after the signal the lock is granted")
			s.b.free(waiter.Hold, nil, "the holder releases")
		}
	},
}, {
	name: "watch/again",
	text: "A watch signals again if the first signal did not help.",
	run: func(s *scene) {
		r, faster := s.request(), s.request()
		s.a.take(r, "a free lock is granted")
		w := s.b.watch(s.rival(r))
		s.a.free(r.Hold, nil, "the holder releases")
		w.rings("a release is signalled")
		if _, err := s.a.acquire(faster); err == nil {
			w.drain()
			s.a.free(faster.Hold, nil, "the holder releases")
			w.rings("each release is signalled, not only the first")
		}
		w.end()
	},
}, {
	name: "watch/all-that-may-enter",
	text: "A waiter that goes away does not swallow the signal for another.",
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		one, two := s.rival(r), s.rival(r)
		goes, stays := s.a.watch(one), s.b.watch(two)
		s.a.free(r.Hold, nil, "the holder releases")
		goes.end()
		s.a.giveUp(one)
		stays.rings("a release is signalled to all whom it may let in")
		s.b.take(two, "after the signal the lock is granted")
		stays.end()
	},
}, {
	name: "watch/ctx-bounds-arming",
	text: "The context of Watch bounds the arming only.",
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		ctx, cancel := context.WithCancel(s.ctx)
		w := s.b.watchWith(ctx, s.rival(r))
		cancel()
		s.sleep(s.pause())
		s.a.free(r.Hold, nil, "the holder releases")
		w.rings("the context of Watch bounds the arming only")
		w.end()
	},
}, {
	name: "watch/quiet",
	text: "While nothing happens nothing is signalled, or not for ever.",
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		w := s.b.watch(s.rival(r))
		quiet := time.After(150 * time.Millisecond)
		for spare := 0; !s.over(); spare++ {
			select {
			case _, open := <-w.Ready:
				s.want(open, "Ready is not closed")
				s.want(spare < 10, "a signal tells that something happened: %d came while nothing did", spare+1)
				continue
			case <-quiet:
			}
			break
		}
		w.end()
	},
}, {
	name:  "watch/closed-takes-nothing",
	text:  "After its Close a watch takes nothing, and Ready is not closed.",
	every: true,
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		w := s.b.watch(s.rival(r))
		w.drain()
		w.end()
		s.a.free(r.Hold, nil, "the holder releases")
		s.sleep(4 * s.pause())
		s.a.take(s.rival(r), "a closed watch takes nothing")
		if !s.over() {
			select {
			case _, open := <-w.Ready:
				s.want(open, "Ready is not closed")
			default:
			}
		}
	},
}, {
	name:  "watch/place-left",
	text:  "Who stands in line is signalled when all before it have left.",
	needs: line,
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		waiters := s.queueUp(r, s.a, s.b)
		w := s.b.watch(queued(waiters[1]))
		s.a.free(r.Hold, nil, "the holder releases")
		s.a.free(waiters[0].Hold, nil, "Release ends a place in line")
		w.rings("leaving the line is signalled to the next")
		s.b.take(queued(waiters[1]), "those behind a place that was left move up")
		w.end()
	},
}, {
	name:  "watch/line-moves",
	text:  "Each in line is signalled when its turn comes.",
	needs: line,
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		waiters := s.queueUp(r, s.a, s.b)
		first, second := s.a.watch(queued(waiters[0])), s.b.watch(queued(waiters[1]))
		s.a.free(r.Hold, nil, "the holder releases")
		first.rings("a release is signalled to the first in line")
		s.a.take(queued(waiters[0]), "the first in line gets in")
		first.end()
		second.drain()
		s.a.free(waiters[0].Hold, nil, "the holder releases")
		second.rings("a release is signalled to the next in line")
		s.b.take(queued(waiters[1]), "the next in line gets in")
		second.end()
	},
}, {
	name:  "watch/downgrade",
	text:  "A downgrade is signalled to readers.",
	needs: downgrades,
	run: func(s *scene) {
		w, r := s.writer(), s.reader()
		s.a.take(w, "a free lock is granted")
		watch := s.b.watch(r)
		s.a.take(asReader(w), "a writer can become a reader")
		watch.rings("a downgrade is signalled to readers")
		s.b.take(r, "readers share with a downgraded writer")
		watch.end()
	},
}, {
	name:  "watch/last-reader",
	text:  "The last reader's release is signalled to a writer.",
	needs: readWrite,
	run: func(s *scene) {
		one, two, w := s.reader(), s.reader(), s.writer()
		s.a.take(one, "a free lock is granted")
		s.b.take(two, "readers share")
		watch := s.b.watch(w)
		s.a.free(one.Hold, nil, "the holder releases")
		watch.drain()
		s.b.free(two.Hold, nil, "the holder releases")
		watch.rings("the last reader's release is signalled to a writer")
		s.b.take(w, "without readers the lock is free")
		watch.end()
	},
}, {
	name:  "watch/permit",
	text:  "Each released permit is signalled.",
	needs: semaphore,
	run: func(s *scene) {
		one, two, waiter := s.permit(2), s.permit(2), s.permit(2)
		s.a.take(one, "permits up to the limit")
		s.a.take(two, "permits up to the limit")
		w := s.b.watch(waiter)
		s.a.free(two.Hold, nil, "the holder releases")
		w.rings("a released permit is signalled")
		s.b.take(waiter, "a released permit is free")
		w.end()
	},
}, {
	name: "watch/forced-release",
	text: "A release that names a hold from another connection is signalled.",
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		w := s.b.watch(s.rival(r))
		s.b.free(s.b.seen(r), nil, "what Inspect tells is enough to release")
		w.rings("a release by force is signalled")
		w.end()
	},
}}

// bell is an armed watch of a scene; nil Ready if the scene is over.
type bell struct {
	driver.Watch
	c *conn
}

// watch arms a watch for r, or ends the scene if the backend can't.
func (c *conn) watch(r driver.Request) bell { return c.watchWith(c.ctx, r) }

func (c *conn) watchWith(ctx context.Context, r driver.Request) bell {
	if c.over() {
		return bell{c: c}
	}
	defer c.call("Watch")()
	w, ok := c.Backend.(driver.Watcher)
	if !ok {
		c.fail(ErrNotClaimed)
		return bell{c: c}
	}
	watch, err := w.Watch(ctx, r)
	if c.optional(err, "Watch"); err != nil {
		return bell{c: c}
	}
	c.remember(r.Hold)
	return bell{watch, c}
}

// rings must be signalled in time.
func (b bell) rings(rule string) {
	if b.c.over() {
		return
	}
	select {
	case _, open := <-b.Ready:
		b.c.want(open, "Ready is not closed")
	case <-time.After(b.c.Slack):
		b.c.broke("%s: no signal on connection %s within %v", rule, b.c.label, b.c.Slack)
	case <-b.c.ctx.Done():
		b.c.broke("%s: no signal on connection %s until the check timed out", rule, b.c.label)
	}
}

// drain drops a spare signal.
func (b bell) drain() {
	select {
	case <-b.Ready:
	default:
	}
}

// end closes the watch, also when the scene is over.
func (b bell) end() {
	if b.Close != nil {
		defer b.c.call("Watch.Close")()
		b.Close()
	}
}

// giveUp releases whatever r's owner may have, as the core does after each wait that
// brought nothing.
func (c *conn) giveUp(r driver.Request) {
	if !c.over() {
		defer c.call("Release")()
		c.Release(c.ctx, r.Hold)
	}
}
