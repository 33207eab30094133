// Package judge says whether programs that shared locks were ever in each other's way, from what they saw themselves.
package judge

import (
	"cmp"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/distlock/distlock/internal/testkit/exclusion"
)

// Hold is one lease, as its holder saw it. Times are nanoseconds of CLOCK_MONOTONIC, which the processes of a machine
// share. A call that did not return a lease is no Hold: its caller never believed that it had the lock.
type Hold struct {
	Process, ID int
	Name        string
	exclusion.Sharing
	Owner    string // the same for leases that a process passes on inside
	Fence    uint64
	Call     int64 // when Lock was called
	Grant    int64 // when it returned
	End      int64 // when the holder called Unlock, saw its context end, or was killed; 0: not yet
	Deadline int64 // the last deadline of the lease
}

// Trusted returns until when the holder may trust the lease: to its End, or to the deadline if that was earlier. A
// program that is paused sees the end of its context too late, but it can compare the clock.
func (h Hold) Trusted() int64 { return min(h.End, h.Deadline) }

// Believed returns until when the holder believed that it had the lock.
func (h Hold) Believed() int64 { return h.End }

// Overlaps returns how many holds began while others of that name had the lock that may not be beside them, to the time that until
// says.
func Overlaps(all []Hold, until func(Hold) int64) (n int) {
	for _, holds := range byName(all, until) {
		var had []Hold
		for _, h := range holds {
			had = slices.DeleteFunc(had, func(o Hold) bool { return until(o) <= h.Grant })
			var beside []exclusion.Sharing
			for _, o := range had {
				beside = append(beside, o.Sharing)
			}
			if !h.Fits(beside) {
				n++
			}
			had = append(had, h)
		}
	}
	return n
}

// FenceFaults returns how many fences are not greater than the fence of a lease that was granted before the call, or
// are not unique among those that may have none beside them. A fence of 0 is not known. A process that passes a lock on inside goes on with the fences of its grant, so such a lease counts as
// called when that grant was.
func FenceFaults(all []Hold) (n int) {
	type span struct {
		owner string
		next  uint64
	}
	for _, holds := range byName(all, nil) {
		greatest := make([]uint64, len(holds)+1) // of the first i grants
		seen := map[uint64]bool{}
		calls := map[span]int64{} // of the grants that can be passed on
		for i, h := range holds {
			greatest[i+1] = max(greatest[i], h.Fence)
			if h.Fence == 0 {
				continue
			}
			call, passedOn := calls[span{h.Owner, h.Fence}]
			if !passedOn {
				call = h.Call
			}
			calls[span{h.Owner, h.Fence + 1}] = call
			before, _ := slices.BinarySearchFunc(holds, call, func(h Hold, t int64) int { return cmp.Compare(h.Grant, t) })
			if h.Fence <= greatest[before] || h.Kind == "" && seen[h.Fence] {
				n++
			}
			seen[h.Fence] = true
		}
	}
	return n
}

// Orderly reports whether the holds of each name are one after the other, with fences that increase. Names whose holds have kinds are
// left to Overlaps. The same is what Linearizable finds out in a way of its own.
func Orderly(all []Hold) bool {
	for _, holds := range mutexes(all) {
		var last Hold
		for _, h := range holds {
			if h.Grant < last.Trusted() || h.Fence <= last.Fence {
				return false
			}
			last = h
		}
	}
	return true
}

// Linearizable reports whether porcupine can explain the holds by a mutex whose fences increase: each acquisition takes
// effect between its call and its return, and each hold lasts until it is not trusted any more.
func Linearizable(all []Hold) porcupine.CheckResult {
	result := porcupine.Ok
	for _, holds := range mutexes(all) {
		var ops []porcupine.Operation
		for i, h := range holds {
			ops = append(ops,
				porcupine.Operation{ClientId: i, Input: step{true, i, h.Fence}, Call: h.Call, Return: h.Grant},
				porcupine.Operation{ClientId: i, Input: step{false, i, 0}, Call: h.Trusted(), Return: h.Trusted()})
		}
		switch r := porcupine.CheckOperationsTimeout(mutex, ops, 10*time.Minute); {
		case r == porcupine.Illegal:
			return r
		case r != porcupine.Ok:
			result = r
		}
	}
	return result
}

// step is an operation on the model.
type step struct {
	acquire bool
	holder  int
	fence   uint64
}

type state struct {
	held   bool
	holder int
	fence  uint64 // the last one
}

var mutex = porcupine.Model{
	Init: func() any { return state{} },
	Step: func(s, input, _ any) (bool, any) {
		now, op := s.(state), input.(step)
		if op.acquire {
			return !now.held && op.fence > now.fence, state{true, op.holder, op.fence}
		}
		return now.held && now.holder == op.holder, state{fence: now.fence}
	},
}

// LongestGap returns the longest time between begin and end in which none of the holds began.
func LongestGap(holds []Hold, begin, end int64) time.Duration {
	times := []int64{begin, end}
	for _, h := range holds {
		times = append(times, h.Grant)
	}
	slices.Sort(times)
	var longest int64
	for i := range len(times) - 1 {
		longest = max(longest, times[i+1]-times[i])
	}
	return time.Duration(longest)
}

// Healed returns the longest time from a heal to the next grant, and whether there was one after each.
func Healed(holds []Hold, heals []int64) (longest time.Duration, ok bool) {
	for _, heal := range heals {
		next := int64(-1)
		for _, h := range holds {
			if h.Grant >= heal && (next < 0 || h.Grant < next) {
				next = h.Grant
			}
		}
		if next < 0 {
			return 0, false
		}
		longest = max(longest, time.Duration(next-heal))
	}
	return longest, true
}

// mutexes returns the holds of names that are of one kind, by their names.
func mutexes(all []Hold) map[string][]Hold {
	names := byName(all, Hold.Trusted)
	for _, h := range all {
		if h.Kind != "" {
			delete(names, h.Name)
		}
	}
	return names
}

// byName returns the holds of each name in the order of their grants. With until, it leaves out holds that were over
// before their holder knew of them.
func byName(all []Hold, until func(Hold) int64) map[string][]Hold {
	names := map[string][]Hold{}
	for _, h := range all {
		if until == nil || until(h) > h.Grant {
			names[h.Name] = append(names[h.Name], h)
		}
	}
	for _, holds := range names {
		slices.SortFunc(holds, func(a, b Hold) int { return cmp.Compare(a.Grant, b.Grant) })
	}
	return names
}
