package drivertest

import (
	"context"
	"time"

	"github.com/distlock/distlock/driver"
)

var watchChecks = []promise{{name: "watch/release", every: true,
	text: "A release on another connection is signalled, and the lock can be taken.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		waiter := s.rival(r)
		w := s.b.watch(waiter)
		s.a.free(r.Hold, nil, "the holder releases")
		w.wantSignal("a release is signalled")
		s.b.mustAcquire(waiter, "after the signal the lock is granted")
	},
}, {name: "watch/same-connection",
	text: "A release on the watching connection is signalled too.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		w := s.a.watch(s.rival(r))
		s.a.free(r.Hold, nil, "the holder releases")
		w.wantSignal("a release is signalled, also on the same connection")
	},
}, {name: "watch/armed-on-return",
	text: "When Watch has returned it is armed: a release right after that is not missed.",
	run: func(s *scene) {
		for range 15 {
			r := s.a.hold(s.request())
			waiter := s.rival(r)
			w := s.b.watch(waiter)
			s.a.free(r.Hold, nil, "the holder releases")
			w.wantSignal("Watch is armed when it returns: the release right after it was missed")
			w.end()
			s.b.mustAcquire(waiter, "after the signal the lock is granted")
			s.b.free(waiter.Hold, nil, "the holder releases")
		}
	},
}, {name: "watch/again",
	text: "A watch signals again if the first signal did not help.",
	run: func(s *scene) {
		r, faster := s.request(), s.request()
		s.a.hold(r)
		w := s.b.watch(s.rival(r))
		s.a.free(r.Hold, nil, "the holder releases")
		w.wantSignal("a release is signalled")
		if _, err := s.a.acquire(faster); err == nil {
			w.drain()
			s.a.free(faster.Hold, nil, "the holder releases")
			w.wantSignal("each release is signalled, not only the first")
		}
	},
}, {name: "watch/all-that-may-enter",
	text: "A waiter that goes away does not swallow the signal for another.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		one, two := s.rival(r), s.rival(r)
		goes, stays := s.a.watch(one), s.b.watch(two)
		s.a.free(r.Hold, nil, "the holder releases")
		goes.end()
		s.a.giveUp(one)
		stays.wantSignal("a release is signalled to all waiters that it may let in")
		s.b.mustAcquire(two, "after the signal the lock is granted")
	},
}, {name: "watch/ctx-bounds-arming",
	text: "The context of Watch bounds the arming only.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		ctx, cancel := context.WithCancel(s.ctx)
		w := s.b.watchWith(ctx, s.rival(r))
		cancel()
		s.sleep(s.pause())
		s.a.free(r.Hold, nil, "the holder releases")
		w.wantSignal("the context of Watch bounds the arming only")
	},
}, {name: "watch/quiet",
	text: "While nothing happens nothing is signalled, or not for ever.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
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
	},
}, {name: "watch/closed-takes-nothing", every: true,
	text: "After its Close a watch takes nothing, and Ready is not closed.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		w := s.b.watch(s.rival(r))
		w.drain()
		w.end()
		s.a.free(r.Hold, nil, "the holder releases")
		s.sleep(4 * s.pause())
		s.a.mustAcquire(s.rival(r), "a closed watch takes nothing")
		if !s.over() {
			select {
			case _, open := <-w.Ready:
				s.want(open, "Ready is not closed")
			default:
			}
		}
	},
}, {name: "watch/one-wake-up", needs: queueing,
	text: "A release wakes the first in the queue, and not all that wait.",
	run: func(s *scene) {
		const waiters = 8
		r := s.a.hold(s.request())
		var requests [waiters]driver.Request
		var watches [waiters]armedWatch
		for i := range waiters {
			requests[i] = queued(s.rival(r))
			s.conn(i).refused(requests[i], "a lock has one holder at a time")
			watches[i] = s.conn(i).watch(requests[i])
			watches[i].drain()
		}
		superfluous, turn, slow := 0, time.Now(), false
		s.a.free(r.Hold, nil, "the holder releases")
		for i, r := range requests {
			watches[i].wantSignal("a release is signalled to the first in the queue")
			s.conn(i).wait(r)
			for _, behind := range watches[i+1:] {
				if behind.drain() {
					superfluous++
				}
			}
			slow = slow || time.Since(turn) >= driver.TurnLife
			turn = time.Now()
			s.conn(i).free(r.Hold, nil, "the holder releases")
		}
		if superfluous > waiters && slow {
			s.fail(errSlow) // a turn that nobody takes is the next one's
		}
		// A connection that comes back wakes all, since it may have missed a release.
		s.want(s.over() || superfluous <= waiters, "a release wakes the first in the queue: %d releases, %d signals to others", waiters, superfluous)
	},
}, {name: "watch/place-left", needs: queueing,
	text: "A waiter in the queue is signalled when all before it have left.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		waiters := s.queueUp(r, s.a, s.b)
		w := s.b.watch(queued(waiters[1]))
		s.a.free(r.Hold, nil, "the holder releases")
		s.a.free(waiters[0].Hold, nil, "Release ends a place in the queue")
		w.wantSignal("leaving the queue is signalled to the next")
		s.b.mustAcquire(queued(waiters[1]), "the places behind one that was left move up")
	},
}, {name: "watch/queue-moves", needs: queueing,
	text: "Each waiter in the queue is signalled when its turn comes.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		waiters := s.queueUp(r, s.a, s.b)
		first, second := s.a.watch(queued(waiters[0])), s.b.watch(queued(waiters[1]))
		s.a.free(r.Hold, nil, "the holder releases")
		first.wantSignal("a release is signalled to the first in the queue")
		s.a.mustAcquire(queued(waiters[0]), "the first in the queue gets the lock")
		first.end()
		second.drain()
		s.a.free(waiters[0].Hold, nil, "the holder releases")
		second.wantSignal("a release is signalled to the next in the queue")
		s.b.mustAcquire(queued(waiters[1]), "the next in the queue gets the lock")
	},
}, {name: "watch/signaled", every: true, needs: queueing,
	text: "Who was refused with Signaled is signalled when the holder releases, or the turn of a dead one ahead has passed, and needs no attempt before.",
	run: func(s *scene) {
		r, other := s.b.hold(s.request()), s.a.hold(s.requestFor("other"))
		s.b.isTold(queued(s.rival(other)), func() { s.a.free(other.Hold, nil, "the holder releases") })
		s.queueUp(r, s.a)
		s.b.isTold(queued(s.rival(r)), func() {
			s.b.free(r.Hold, nil, "the holder releases")
			s.a.fallSilent()
		})
	},
}, {name: "watch/signaled-retry", needs: need{queue: true, ownTTL: true, modes: driver.Modes(driver.Write, driver.Read)},
	text: "Who was refused with Signaled because of several holders is told in HeldError.Retry when the first of them ends.",
	run: func(s *scene) {
		one, dead := s.reader(), s.brief(s.reader())
		s.a.hold(one)
		s.a.hold(dead)
		s.b.isTold(queued(s.writer()), func() { s.a.free(one.Hold, nil, "the holder releases") })
	},
}, {name: "watch/downgrade", needs: downgrades,
	text: "A downgrade is signalled to readers.",
	run: func(s *scene) {
		w, r := s.writer(), s.reader()
		s.a.hold(w)
		watch := s.b.watch(r)
		s.a.mustAcquire(asReader(w), "a writer can become a reader")
		watch.wantSignal("a downgrade is signalled to readers")
		s.b.mustAcquire(r, "readers share with a downgraded writer")
	},
}, {name: "watch/last-reader", needs: readWrite,
	text: "The last reader's release is signalled to a writer.",
	run: func(s *scene) {
		one, two, w := s.reader(), s.reader(), s.writer()
		s.a.hold(one)
		s.b.mustAcquire(two, "readers share")
		watch := s.b.watch(w)
		s.a.free(one.Hold, nil, "the holder releases")
		watch.drain()
		s.b.free(two.Hold, nil, "the holder releases")
		watch.wantSignal("the last reader's release is signalled to a writer")
		s.b.mustAcquire(w, "without readers the lock is free")
	},
}, {name: "watch/permit", needs: semaphore,
	text: "Each released permit is signalled.",
	run: func(s *scene) {
		one, two, waiter := s.permit(2), s.permit(2), s.permit(2)
		s.a.mustAcquire(one, "permits up to the limit")
		s.a.mustAcquire(two, "permits up to the limit")
		w := s.b.watch(waiter)
		s.a.free(two.Hold, nil, "the holder releases")
		w.wantSignal("a released permit is signalled")
		s.b.mustAcquire(waiter, "a released permit is free")
	},
}, {name: "watch/forced-release",
	text: "A release that names a hold from another connection is signalled.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		w := s.b.watch(s.rival(r))
		s.b.free(s.b.seen(r), nil, "what Inspect reports is enough to release")
		w.wantSignal("a release by force is signalled")
	},
}}

var revokeChecks = []promise{{name: "revoke/asks", every: true, needs: revocable,
	text: "A holder that agreed to revocation is soon notified of a request for its lock.",
	run: func(s *scene) {
		r, asked := onRevoke(s.request())
		s.a.hold(r)
		s.b.revoke(r.Hold, nil, "a holder can be revoked")
		s.wantRevoked(asked, "a revoked holder is notified")
	},
}, {name: "revoke/takes-nothing", every: true, needs: revocable,
	text: "A revoked holder keeps the lock until it releases.",
	run: func(s *scene) {
		r, asked := onRevoke(s.request())
		s.a.hold(r)
		s.b.revoke(r.Hold, nil, "a holder can be revoked")
		s.wantRevoked(asked, "a revoked holder is notified")
		s.b.refused(s.rival(r), "Revoke takes nothing from the holder")
		s.a.renew(r.Hold, nil, "Revoke takes nothing from the holder")
		s.a.free(r.Hold, nil, "Revoke takes nothing from the holder")
		s.b.mustAcquire(s.rival(r), "a lock that was revoked and released is free")
	},
}, {name: "revoke/once", every: true, needs: revocable,
	text: "A holder that is revoked again and again is notified once.",
	run: func(s *scene) {
		r, asked := onRevoke(s.request())
		s.a.hold(r)
		for _, c := range []*conn{s.b, s.a, s.b} {
			c.revoke(r.Hold, nil, "a holder can be revoked again")
		}
		s.wantRevoked(asked, "a revoked holder is notified")
		s.sleep(10 * s.pause())
		s.want(asked.calls.Load() == 1, "OnRevoke is called at most once: it was called %d times", asked.calls.Load())
	},
}, {name: "revoke/only-the-named", every: true, needs: revocable,
	text: "Only the named holder is notified.",
	run: func(s *scene) {
		r, asked := onRevoke(s.pair())
		beside, other := onRevoke(s.pair())
		if r.Mode.Alone() {
			beside.Name += " beside"
		}
		s.a.hold(beside)
		s.a.hold(r)
		s.b.revoke(r.Hold, nil, "a holder can be revoked")
		s.wantRevoked(asked, "a revoked holder is notified")
		s.wantNotRevoked(other, "only the named holder is notified")
	},
}, {name: "revoke/lost", every: true, needs: revocable,
	text: "Revoking an Owner that does not hold is ErrLost, and notifies no holder.",
	run: func(s *scene) {
		r, asked := onRevoke(s.request())
		s.b.revoke(r.Hold, driver.ErrLost, "an Owner that never held can't be revoked")
		s.a.hold(r)
		s.b.revoke(stranger(r), driver.ErrLost, "an Owner that does not hold can't be revoked")
		s.a.revoke(stranger(r), driver.ErrLost, "an Owner that does not hold can't be revoked, also on the holder's connection")
		s.a.free(r.Hold, nil, "the holder releases")
		s.b.revoke(r.Hold, driver.ErrLost, "an Owner that has released can't be revoked")
		s.wantNotRevoked(asked, "only the named holder is notified")
	},
}, {name: "revoke/expired", every: true, needs: revocable,
	text: "Revoking a hold that has ended is ErrLost.",
	run: func(s *scene) {
		r, c := s.expired()
		c.revoke(r.Hold, driver.ErrLost, "a hold that has ended can't be revoked")
	},
}, {name: "revoke/leaves-successor", every: true, needs: revocable,
	text: "Revoking a holder that was inspected does not notify its successor.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		seen := s.b.seen(r)
		s.a.free(r.Hold, nil, "the holder releases")
		next, asked := onRevoke(s.rival(r))
		next.Mode = r.Mode
		s.a.mustAcquire(next, "a released lock is free")
		s.b.revoke(seen, driver.ErrLost, "an Owner that has released can't be revoked")
		s.wantNotRevoked(asked, "a successor is not notified for its predecessor")
	},
}, {name: "revoke/not-in-queue", every: true, needs: need{revocable: true, queue: true},
	text: "A waiter in the queue can't be revoked, and the holder is not notified for it.",
	run: func(s *scene) {
		r, asked := onRevoke(s.request())
		s.a.hold(r)
		w := s.queueUp(r, s.b)[0]
		w.Mode = s.mode
		s.b.revoke(w.Hold, driver.ErrLost, "a waiter in the queue does not hold")
		s.wantNotRevoked(asked, "only the named holder is notified")
	},
}, {name: "revoke/latest", every: true, needs: revocable,
	text: "If an Owner asked again, the OnRevoke of its latest grant is called.",
	run: func(s *scene) {
		r, first := onRevoke(s.request())
		s.a.hold(r)
		r, latest := onRevoke(r)
		s.a.mustAcquire(r, "the same Owner asked again is the same hold")
		s.b.revoke(r.Hold, nil, "a holder can be revoked")
		s.wantRevoked(latest, "the OnRevoke of an Owner's latest grant counts")
		s.want(first.calls.Load() == 0, "the OnRevoke of an Owner's latest grant counts: an earlier one was called")
	},
}, {name: "revoke/unasked", every: true, needs: revocable,
	text: "OnRevoke is not called for a hold that was not revoked.",
	run: func(s *scene) {
		r, asked := onRevoke(s.request())
		s.a.hold(r)
		s.a.renew(r.Hold, nil, "the holder renews")
		s.a.mustAcquire(r, "the same Owner asked again is the same hold")
		s.b.refused(s.rival(r), "a lock has one holder at a time")
		s.a.free(r.Hold, nil, "the holder releases")
		s.b.mustAcquire(s.rival(r), "a released lock is free")
		s.wantNotRevoked(asked, "OnRevoke is for revocations")
	},
}, {name: "revoke/without-consent", every: true, needs: revocable,
	text: "A holder that has not agreed to revocation keeps the lock.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		s.b.revokeSilent(r.Hold, "a holder that has not agreed")
		s.sleep(10 * s.pause())
		s.b.refused(s.rival(r), "a holder that has not agreed keeps the lock")
		s.a.renew(r.Hold, nil, "a holder that has not agreed keeps the lock")
		s.a.free(r.Hold, nil, "a holder that has not agreed keeps the lock")
	},
}}
