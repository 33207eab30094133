package redislock

import (
	"errors"
	"fmt"
	"maps"
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

// world lists the hold of each owner, and the places in the queue.
type world struct {
	holds [fuzzOwners]driver.Mode
	line  [fuzzOwners]place
}

// place is that of an owner, counted from 1; 0: there is none.
type place struct {
	owner int
	mode  driver.Mode
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
	beside bool // another attempt of the round may have had the lock for a moment
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
		if i := w.place(o.owner); i >= 0 && has == nothing {
			w.line[i].mode = o.mode
		}
		if has == nothing && !w.admits(o) {
			if o.queue && w.place(o.owner) < 0 {
				w.line[w.place(-1)] = place{o.owner + 1, o.mode}
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

// place returns the index of an owner's place, and of the first one that is free for owner -1; -1: there is none.
func (w *world) place(owner int) int {
	return slices.IndexFunc(w.line[:], func(p place) bool { return p.owner == owner+1 })
}

// leave removes an owner from the queue, and reports whether it was queued.
func (w *world) leave(owner int) bool {
	i := w.place(owner)
	if i >= 0 {
		copy(w.line[i:], w.line[i+1:])
		w.line[fuzzOwners-1] = place{}
	}
	return i >= 0
}

// admits reports whether the holders, and those that are queued before it, leave room for one more.
func (w world) admits(o op) bool {
	ahead := slices.DeleteFunc(slices.Clone(w.holds[:]), func(m driver.Mode) bool { return m == nothing })
	for _, p := range w.line {
		if p.owner == 0 || p.owner == o.owner+1 {
			break
		}
		ahead = append(ahead, p.mode)
	}
	room := map[driver.Mode]int{driver.Read: fuzzOwners, driver.Counted: fuzzLimit}
	return len(ahead) < max(room[o.mode], 1) && !slices.ContainsFunc(ahead, func(m driver.Mode) bool { return m != o.mode })
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
			if o.plain() && w.free() { // it may have got the lock, and not have seen the queue
				w.leave(o.owner)
				w.holds[o.owner] = o.mode
				next[w] = true
			}
		case o.answer == answer:
			next[then] = true
		case o.answer == held && o.beside && w.free(): // it met the moment in which another one had the lock
			w.holds[(o.owner+1)%fuzzOwners] = driver.Exclusive
			then, _ = w.step(o)
			then.holds[(o.owner+1)%fuzzOwners] = nothing
			next[then] = true
		}
	}
	return next
}

// plain reports whether an attempt may take a lock before it looks at the queue. It gives the lock back if there is one.
func (o op) plain() bool {
	return o.kind == opAcquire && (o.mode == driver.Exclusive || o.mode == driver.Write)
}

// besideOthers notes which calls are beside an attempt that may have had the lock for a moment.
func besideOthers(ops []op) {
	for i := range ops {
		for j, o := range ops {
			ops[i].beside = ops[i].beside || i != j && o.plain() && o.answer != yes
		}
	}
}

// free reports whether nobody holds.
func (w world) free() bool { return w.holds == [fuzzOwners]driver.Mode{} }

// afterAll is the worlds that calls at the same time leave: they took place in some
// order. If they were slow, turns may have ended between them.
func (ws worlds) afterAll(ops []op, slow bool) worlds {
	if len(ops) == 0 {
		return ws
	}
	if slow {
		ws = ws.withoutTurns()
	}
	next := worlds{}
	for i, first := range ops {
		rest := slices.Delete(slices.Clone(ops), i, i+1)
		for w := range ws.after(first).afterAll(rest, slow) {
			next[w] = true
		}
	}
	return next
}

// mayEnter reports whether an owner is queued, and may hold.
func (w world) mayEnter(owner int) bool {
	i := w.place(owner)
	return i >= 0 && w.admits(op{owner: owner, mode: w.line[i].mode})
}

// next reports whether a lock may be kept for an owner.
func (ws worlds) next(owner int) bool {
	for w := range ws {
		if w.mayEnter(owner) {
			return true
		}
	}
	return false
}

// queued reports whether an owner may have a place.
func (ws worlds) queued(owner int) bool {
	for w := range ws {
		if w.place(owner) >= 0 {
			return true
		}
	}
	return false
}

// withoutTurns adds the worlds in which places have ended that may hold, or are those of late owners.
func (ws worlds) withoutTurns(late ...int) worlds {
	all := maps.Clone(ws)
	for w := range ws {
		for owner := range fuzzOwners {
			then := w
			if (w.mayEnter(owner) || slices.Contains(late, owner)) && then.leave(owner) {
				maps.Copy(all, worlds{then: true}.withoutTurns(late...))
			}
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
		if w.holds[owner] != nothing || w.place(owner) >= 0 {
			return false
		}
	}
	return true
}
