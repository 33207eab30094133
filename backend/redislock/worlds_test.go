package redislock

import (
	"errors"
	"fmt"
	"slices"

	"github.com/distlock/distlock/driver"
)

// A model of one name: all states that the server may be in, given the answers that its clients
// got. If the answers allow several states, the model keeps them all. An answer that fits none of
// them is a violation.

// fuzzOwners is how many try to hold the name.
const fuzzOwners = 5

// nothing is the mode of an owner without a hold.
const nothing driver.Mode = 0

// world lists the hold of each owner and the queued owners, counted from 1.
type world struct {
	holds [fuzzOwners]driver.Mode
	line  [fuzzOwners]int
}

type opKind string

const (
	opAcquire opKind = "acquire"
	opRenew   opKind = "renew"
	opRelease opKind = "release"
	opWatch   opKind = "watch"
)

// op is a call by an owner. Of a counted lock two may hold.
type op struct {
	kind   opKind
	owner  int
	mode   driver.Mode
	queue  bool // of an acquire: keep a place in the queue
	answer outcome
	err    error
}

const fuzzLimit = 2

func (o op) String() string {
	return fmt.Sprintf("%s %v by %d: %s (%v)", o.kind, o.mode, o.owner, o.answer, o.err)
}

// outcome is a caller's reading of an error.
type outcome string

const (
	yes     outcome = "yes"
	held    outcome = "held"
	lost    outcome = "lost"
	unclear outcome = "unknown"
	refusal outcome = "refused for good" // fits no state
)

func answerOf(err error) outcome {
	switch {
	case err == nil:
		return yes
	case errors.Is(err, driver.ErrHeld):
		return held
	case errors.Is(err, driver.ErrLost):
		return lost
	case driver.Final(err):
		return refusal
	}
	return unclear
}

// step returns the result of a call that the contract requires.
func (w world) step(o op) (world, outcome) {
	has := w.holds[o.owner]
	switch o.kind {
	case opAcquire:
		if has != o.mode && !w.admits(o) {
			if o.queue {
				w.enqueue(o.owner)
			}
			return w, held
		}
		w.leave(o.owner)
		w.holds[o.owner] = o.mode
		return w, yes
	case opRenew:
		if has != o.mode {
			return w, lost
		}
		return w, yes
	case opRelease:
		w.holds[o.owner] = nothing
		if !w.leave(o.owner) && has == nothing {
			return w, lost
		}
	}
	return w, yes
}

// enqueue queues an owner last, unless it is queued already.
func (w *world) enqueue(owner int) {
	if !slices.Contains(w.line[:], owner+1) {
		w.line[slices.Index(w.line[:], 0)] = owner + 1
	}
}

// leave removes an owner from the queue, and reports whether it was queued.
func (w *world) leave(owner int) bool {
	i := slices.Index(w.line[:], owner+1)
	if i >= 0 {
		copy(w.line[i:], w.line[i+1:])
		w.line[fuzzOwners-1] = 0
	}
	return i >= 0
}

// admits reports whether the others leave room for one more, and let it pass.
func (w world) admits(o op) bool {
	if w.line[0] != 0 && w.line[0] != o.owner+1 {
		return false
	}
	others := 0
	for i, mode := range w.holds {
		if i == o.owner || mode == nothing {
			continue
		}
		others++
		if mode != o.mode || mode == driver.Exclusive || mode == driver.Write {
			return false
		}
	}
	return o.mode != driver.Counted || others < fuzzLimit
}

type worlds map[world]bool

// after returns the worlds that are possible after one call and its answer.
func (ws worlds) after(o op) worlds {
	next := worlds{}
	for w := range ws {
		then, answer := w.step(o)
		switch {
		case o.answer == unclear:
			next[w], next[then] = true, true
		case o.answer == answer:
			next[then] = true
		}
	}
	return next
}

// afterAll is the worlds that calls at the same time leave: they took place in some
// order.
func (ws worlds) afterAll(ops []op) worlds {
	if len(ops) == 0 {
		return ws
	}
	next := worlds{}
	for i, first := range ops {
		rest := slices.Delete(slices.Clone(ops), i, i+1)
		for w := range ws.after(first).afterAll(rest) {
			next[w] = true
		}
	}
	return next
}

// free reports whether nobody holds.
func (w world) free() bool { return w.holds == [fuzzOwners]driver.Mode{} }

// next reports whether a free lock may be kept for an owner.
func (ws worlds) next(owner int) bool {
	for w := range ws {
		if w.free() && w.line[0] == owner+1 {
			return true
		}
	}
	return false
}

// withoutTurns adds the worlds in which first places of a free lock have ended.
func (ws worlds) withoutTurns() worlds {
	all := worlds{}
	for w := range ws {
		all[w] = true
		for w.free() && w.line[0] != 0 {
			w.leave(w.line[0] - 1)
			all[w] = true
		}
	}
	return all
}

// may reports whether an owner may hold in a mode.
func (ws worlds) may(owner int, mode driver.Mode) bool {
	for w := range ws {
		if w.holds[owner] == mode {
			return true
		}
	}
	return false
}

// gone reports whether an owner has nothing, for sure: neither a hold nor a place.
func (ws worlds) gone(owner int) bool {
	for w := range ws {
		if w.holds[owner] != nothing || slices.Contains(w.line[:], owner+1) {
			return false
		}
	}
	return true
}
