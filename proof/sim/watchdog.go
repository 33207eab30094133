package sim

import (
	"cmp"
	"slices"
)

// The constants of internal/renew and of redislock, which a test compares.
const (
	roundSize    = 1000 // holds in a call of Renew
	scriptSize   = 500  // holds in a script
	maxRetries   = 32   // calls at once for holds whose renewal had no answer
	retryShares  = 8 * maxRetries
	earlyBy      = 16. // a renewal is taken 1/16 of the TTL early if others are due
	maxCall      = 5 * Second
	firstBackoff = 60. // a part of the TTL
	lastBackoff  = 12.
)

// Watchdog renews the holds of a client, as internal/renew does.
type Watchdog struct {
	*Sim
	TTL, Margin float64

	// Renew calls the backend for holds. It calls answered in the end, once.
	Renew func(holds []*Lease, patience float64, answered func(ok bool))

	leases   []*Lease
	retry    []*Lease
	retrying int
	Lost     int
	Renewed  func(*Lease) // after an answer; may be nil
}

// Lease is a hold of a Watchdog.
type Lease struct {
	shard int
	start float64 // of the last request that succeeded
	tries int     // calls without an answer since
	due   float64
	call  bool // it is in a call, or will be as soon as there is room
	gone  bool
	index int // in Watchdog.leases
}

// Add puts a lease under watch that was granted, or renewed, by a request at start.
func (w *Watchdog) Add(l *Lease, start float64) {
	l.index = len(w.leases)
	w.leases = append(w.leases, l)
	w.renewed(l, start)
}

// Remove ends the watch.
func (w *Watchdog) Remove(l *Lease) {
	l.gone = true
	last := w.leases[len(w.leases)-1]
	w.leases[l.index], last.index = last, l.index
	w.leases = w.leases[:len(w.leases)-1]
}

func (w *Watchdog) left(l *Lease) float64 { return l.start + w.TTL - w.Margin - w.Now }

func (w *Watchdog) renewed(l *Lease, start float64) {
	l.start, l.tries = start, 0
	w.plan(l, start+w.TTL/3)
	w.After(w.left(l), func() {
		if l.start == start && !l.gone {
			w.Lost++
			w.Remove(l)
		}
	})
}

// plan lets a lease be due at a time.
func (w *Watchdog) plan(l *Lease, due float64) {
	l.due = due
	w.After(max(0, due-w.Now), func() {
		if !l.gone && !l.call && l.due == due {
			w.tick()
		}
	})
}

// tick renews the leases that are due, and others a little early: but none that is due behind the end of
// a lease that waits for its answer.
func (w *Watchdog) tick() {
	soon := w.Now + w.TTL/earlyBy
	var ready, due []*Lease
	for _, l := range w.leases {
		switch end := w.Now + w.left(l); {
		case l.call || l.due >= end:
			soon = min(soon, end)
		case l.due <= soon:
			ready = append(ready, l)
		}
	}
	slices.SortFunc(ready, func(a, b *Lease) int { return cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(a.index, b.index)) })
	for _, l := range ready {
		if l.due > soon {
			break
		}
		soon = min(soon, w.Now+w.left(l))
		l.call = true
		if l.tries > 0 {
			w.retry = append(w.retry, l)
		} else {
			due = append(due, l)
		}
	}
	for round := range slices.Chunk(due, roundSize) {
		w.round(round, w.TTL/4)
	}
	w.retries()
}

// retries shares out holds whose renewal had no answer, as long as there is room for another call.
func (w *Watchdog) retries() {
	w.retry = slices.DeleteFunc(w.retry, func(l *Lease) bool { return l.gone })
	size := min((len(w.retry)+retryShares-1)/retryShares, roundSize)
	for len(w.retry) > 0 && w.retrying < maxRetries {
		n := min(size, len(w.retry))
		part := slices.Clone(w.retry[:n])
		w.retry = slices.Delete(w.retry, 0, n)
		patience := w.TTL / 4
		for _, l := range part {
			left := w.left(l)
			if left > w.TTL/30 {
				left /= 2
			}
			patience = min(patience, left, maxCall)
		}
		w.retrying++
		w.round(part, patience)
	}
}

// round makes one call.
func (w *Watchdog) round(holds []*Lease, patience float64) {
	start, retry := w.Now, holds[0].tries > 0
	for _, l := range holds {
		patience = min(patience, w.left(l))
	}
	w.Renew(holds, patience, func(ok bool) {
		if retry {
			w.retrying--
		}
		for _, l := range holds {
			l.call = false
			switch {
			case l.gone:
			case ok:
				w.renewed(l, start)
				if w.Renewed != nil {
					w.Renewed(l)
				}
			default:
				w.later(l)
			}
		}
		if retry {
			w.retries()
		}
	})
}

// later plans another renewal after one without an answer.
func (w *Watchdog) later(l *Lease) {
	pause := w.Jitter(min(w.TTL/firstBackoff*float64(int(1)<<min(l.tries, 20)), w.TTL/lastBackoff))
	l.tries++
	w.plan(l, w.Now+min(pause, max(w.left(l)/4, w.TTL/120)))
}
