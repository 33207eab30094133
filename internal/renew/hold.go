// Package renew keeps holds alive. A Watchdog renews all holds of a client in batches, and reports
// the loss of one in time.
//
// Instants are durations since the client was made, by a monotonic clock.
package renew

import (
	"container/list"
	"errors"
	"math"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

// Causes of a loss.
var (
	ErrDeadline = errors.New("it could not be renewed in time")
	ErrMaxHold  = errors.New("it was held for MaxHold")
	ErrGone     = errors.New("the backend says that it is gone")
	ErrBroken   = errors.New("it was broken")
	ErrNoAnswer = errors.New("the backend gave no answer for it")
)

// instant is a point in time, as the time since the client was made.
type instant = time.Duration

const never instant = math.MaxInt64

// Terms are the user's options. They do not change.
type Terms struct {
	TTL         time.Duration
	Margin      time.Duration // trust ends so long before the TTL
	CallTimeout time.Duration
	MaxHold     time.Duration // 0: no limit
	Fixed       bool          // it is not renewed by itself
}

// Holder is the Watchdog's view of a hold. It calls the methods from its own goroutines, under
// no mutex.
type Holder interface {
	// Request returns the hold as the backend knows it, to be renewed for ttl. It is the exception:
	// it is called under the Watchdog's mutex, or for a Reservation.
	Request(ttl time.Duration) driver.Hold

	// Lose ends the hold. unknown says that the backend may still have it. The user is told by report, which may
	// take long, and is called after all holds that are lost together have ended.
	Lose(why error, unknown bool) (report func())

	// Answered receives the answer of Renew for the hold, and how much trust was left when it came.
	Answered(err error, left time.Duration)
}

// Hold is the Watchdog's part of a hold. The zero value is not watched. Its renewal is in one of these states:
//
//	state      what is so then                                      what moves it on
//	unwatched  index is -1, or there is no holder                   Add: planned
//	planned    it is in the queue; next is when to renew it, or     the time: in flight; after no answer: waiting
//	           never, if it is fixed, or ends by MaxHold before     Reserve: in flight
//	waiting    it is due again, and in Watchdog.retry until         a call: in flight. Reserve, Keep: planned
//	           another call may be made
//	in flight  round is a call of Renew, of a Reservation; next is     an answer, or none in time: planned. ErrLost: unwatched
//	           never
//
// From each state the end of trust, Remove, RemoveIdle, Forget and Close lead to unwatched. An answer that comes then moves nothing.
type Hold struct {
	holder Holder
	terms  *Terms
	end    atomic.Int64 // the instant at which trust ends; moved by the Watchdog only

	// Guarded by the Watchdog's mutex. Calls to the backend are made from a round's copy.
	index   int           // in the queue; -1 once removed
	ttl     time.Duration // of renewals; Terms.TTL, or more after an extension
	next    instant       // when the Watchdog has to renew it; never while it does, or if it is capped
	due     instant       // when to renew, unless it is capped; never for a fixed one
	granted instant       // the end by the last answer of the backend
	limit   instant       // the end by MaxHold
	round   *round        // the renewal in flight
	unknown error         // the error of the last renewal, which had no answer
	tries   int32         // renewals without an answer, in a row
	capped  bool          // limit comes before granted
	kept    bool          // its leases have ended
	waiting *list.Element // in Watchdog.retry; nil if it is not
}

// Trust returns the instant until which the hold is trusted.
func (h *Hold) Trust() time.Duration { return instant(h.end.Load()) }

// extendTrust moves the end of trust after a grant or a renewal that was requested at start. It never
// moves it back, since neither shortens a life at the backend. The Watchdog's mutex is held.
func (h *Hold) extendTrust(start instant, ttl time.Duration) {
	h.granted = max(start+ttl-h.terms.Margin, h.granted)
	h.tries, h.unknown = 0, nil
	h.due = never
	if !h.fixed() {
		h.due = start + min(ttl/3, (ttl-h.terms.Margin)/2)
	}
	h.setEnd()
}

// fixed reports whether it is not renewed by itself.
func (h *Hold) fixed() bool { return h.terms.Fixed && !h.kept }

func (h *Hold) setEnd() {
	h.capped = h.granted >= h.limit
	h.end.Store(int64(min(h.granted, h.limit)))
}

// schedule sets next.
func (h *Hold) schedule() {
	h.next = never
	if h.round == nil && !h.capped {
		h.next = h.due
	}
}

// at returns when the Watchdog has to look at h, or its end.
func (h *Hold) at() instant { return min(h.next, h.Trust()) }

// dueBy reports whether the Watchdog looks at h now. A renewal is taken a little early if others are
// due, so that batches are large and timers few.
func (h *Hold) dueBy(now instant) bool {
	return h.at() <= now || h.next <= h.Trust() && h.next-h.ttl/16 <= now
}

// whyEnded returns why trust has ended.
func (h *Hold) whyEnded() error {
	switch {
	case h.capped:
		return ErrMaxHold
	case h.unknown != nil:
		return h.unknown
	}
	return ErrDeadline
}

// retryLater plans another renewal after one without an answer.
func (h *Hold) retryLater(now instant, err error) {
	h.unknown = err
	if h.fixed() || h.capped {
		return
	}
	pause := wait.Jitter(wait.Backoff(int(h.tries), h.ttl/60, h.ttl/12))
	h.due = now + min(pause, max((h.Trust()-now)/4, h.terms.TTL/120))
	h.tries++
}

// patience returns how long a call for h may take: a quarter of its TTL. After calls without an
// answer it is half of the time that is left, so that another one follows, and no longer than
// other calls may take, since holds with a shorter TTL wait for the end of such calls.
func (h *Hold) patience(now instant) time.Duration {
	left := h.Trust() - now
	if h.tries > 0 {
		if left > h.ttl/30 {
			left /= 2
		}
		left = min(left, max(h.terms.CallTimeout, DefaultCallTimeout(h.ttl)))
	}
	return min(left, h.ttl/4)
}

// DefaultCallTimeout returns how long a call for a hold of ttl may take: a third of it, and no longer
// than 5 s.
func DefaultCallTimeout(ttl time.Duration) time.Duration { return min(ttl/3, 5*time.Second) }

// scale groups renewals of similar TTL, which may share a call.
func (h *Hold) scale() int { return bits.Len64(uint64(h.ttl)) }

// holdHeap is a heap by Hold.at.
type holdHeap []*Hold

func (q holdHeap) Len() int           { return len(q) }
func (q holdHeap) Less(i, j int) bool { return q[i].at() < q[j].at() }
func (q holdHeap) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}
func (q *holdHeap) Push(x any) {
	*q = append(*q, x.(*Hold))
	(*q)[len(*q)-1].index = len(*q) - 1
}
func (q *holdHeap) Pop() any {
	last := len(*q) - 1
	h := (*q)[last]
	*q, h.index = slices.Delete(*q, last, last+1), -1
	return h
}
