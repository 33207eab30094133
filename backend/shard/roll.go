package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
)

// roll is what tells other processes which lists this one works with: an entry at each
// member. The backend's locks are trusted while its entries stand at a majority of each
// list's members; two processes without a list in common can't both have them there, if
// their majorities meet.
type roll struct {
	name    string // of the lock whose readers are the entries
	lists   []*list
	entries []*entry
	of      map[*member]*entry
	epoch   time.Time
	until   atomic.Int64 // since epoch: entries stand at majorities at least until then

	mu      sync.Mutex
	life    time.Duration // of an entry that is not renewed
	changed chan struct{} // closed when the next round of an entry is over

	end   context.CancelFunc
	tasks sync.WaitGroup
}

func newRoll(name string, lists []*list, members []*member, life time.Duration) *roll {
	ro := &roll{
		name: name, lists: lists, of: map[*member]*entry{}, epoch: time.Now(),
		life: life, changed: make(chan struct{}),
	}
	for _, m := range members {
		e := &entry{roll: ro, member: m, poke: make(chan struct{}, 1)}
		ro.entries, ro.of[m] = append(ro.entries, e), e
	}
	return ro
}

// start keeps the entries, until close.
func (ro *roll) start() {
	life, end := context.WithCancel(context.Background())
	ro.end = end
	for _, e := range ro.entries {
		ro.tasks.Go(func() { e.keep(life) })
	}
}

// close ends the keeping; withdraw also takes the entries away.
func (ro *roll) close(withdraw bool) {
	ro.end()
	ro.tasks.Wait()
	if !withdraw {
		return
	}
	for _, e := range ro.entries {
		ro.tasks.Go(e.withdraw)
	}
	ro.tasks.Wait()
}

// now is the time since epoch.
func (ro *roll) now() time.Duration { return time.Since(ro.epoch) }

// covers reports whether what is taken at these members now, and lives for ttl, ends
// before the entries do.
func (ro *roll) covers(at []*member, ttl time.Duration) bool {
	end := int64(ro.now() + ttl)
	for _, m := range at {
		if ro.of[m].until.Load() <= end {
			return false
		}
	}
	return ro.until.Load() > end
}

// cover sees to it that covers is true, or says why it can't be. It asks the members if
// need be: one at which there is no entry yet, or all when a longer TTL than ever is wanted.
func (ro *roll) cover(ctx context.Context, at []*member, ttl time.Duration) error {
	if ro.covers(at, ttl) {
		return nil
	}
	awaited := ro.renew(ttl)
	for {
		ro.mu.Lock()
		changed, pending := ro.changed, ro.pending(at, ttl, awaited)
		ro.mu.Unlock()
		switch {
		case ro.covers(at, ttl):
			return nil
		case !pending:
			return ro.refusal(at)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ro.refusal(at), ctx.Err())
		}
	}
}

// renew makes all entries that would end before ttl be renewed now, for at least twice as
// long, and tells which rounds will have done it.
func (ro *roll) renew(ttl time.Duration) map[*entry]int {
	ro.mu.Lock()
	defer ro.mu.Unlock()
	ro.life = max(ro.life, 2*ttl)
	awaited, end := map[*entry]int{}, int64(ro.now()+ttl)
	for _, e := range ro.entries {
		if e.until.Load() > end {
			continue
		}
		awaited[e] = e.rounds + 1
		if e.running {
			awaited[e]++
		}
		e.wake()
	}
	return awaited
}

// pending reports whether answers that are awaited can still make covers true. ro.mu is held.
func (ro *roll) pending(at []*member, ttl time.Duration, awaited map[*entry]int) bool {
	for _, m := range at {
		if e := ro.of[m]; e.rounds >= awaited[e] && e.until.Load() <= int64(ro.now()+ttl) {
			return false
		}
	}
	return slices.ContainsFunc(ro.entries, func(e *entry) bool { return e.rounds < awaited[e] })
}

// settle computes until anew. ro.mu is held.
func (ro *roll) settle() {
	end := int64(1<<63 - 1)
	for _, l := range ro.lists {
		var ends []int64
		for _, m := range l.members {
			ends = append(ends, ro.of[m].until.Load())
		}
		slices.Sort(ends)
		end = min(end, ends[len(ends)-l.majority()])
	}
	ro.until.Store(end)
	close(ro.changed)
	ro.changed = make(chan struct{})
}

// standing reports whether entries stand at a majority of each list's members.
func (ro *roll) standing() bool { return ro.covers(nil, 0) }

// first waits for the first answers: until all have answered, or those that did not are
// late while the others are enough. It is ErrInvalid if another list is in use.
func (ro *roll) first(ctx context.Context) error {
	late := time.After(firstTimeout)
	for enough := false; ; {
		ro.mu.Lock()
		changed := ro.changed
		pending := slices.ContainsFunc(ro.entries, func(e *entry) bool { return e.rounds == 0 })
		other := slices.ContainsFunc(ro.entries, func(e *entry) bool { return e.other != nil })
		ro.mu.Unlock()
		if other || !pending || enough && ro.standing() {
			break
		}
		select {
		case <-changed:
			continue
		case <-late:
			enough, late = true, nil
			continue
		case <-ctx.Done():
		}
		break
	}
	ro.mu.Lock()
	defer ro.mu.Unlock()
	for _, e := range ro.entries {
		if e.other != nil {
			return e.other
		}
	}
	if !ro.standing() {
		return fmt.Errorf("%w (%w)", errTooFew, ro.failures(ro.entries))
	}
	return nil
}

var errTooFew = errors.New("shard: the list of members could not be entered at a majority of them; with fewer, processes with another list would not be noticed")

// refusal says why nothing can be taken at these members now. It is final if a process
// with another list is why.
func (ro *roll) refusal(at []*member) error {
	ro.mu.Lock()
	defer ro.mu.Unlock()
	if !ro.standing() {
		for _, e := range ro.entries {
			if e.other != nil {
				return e.other
			}
		}
		return fmt.Errorf("%w (%w)", errTooFew, ro.failures(ro.entries))
	}
	var missing []*entry
	for _, m := range at {
		missing = append(missing, ro.of[m])
	}
	return fmt.Errorf("shard: the list of members is not entered at the lock's member: %w", ro.failures(missing))
}

// failures says what is wrong with entries. None of it is a fact about a lock. ro.mu is held.
func (ro *roll) failures(entries []*entry) error {
	var all []string
	for _, e := range entries {
		switch {
		case e.err != nil:
			all = append(all, fmt.Sprintf("%s: %v", e.member.name, e.err))
		case e.rounds == 0:
			all = append(all, e.member.name+": no answer yet")
		}
	}
	if len(all) == 0 {
		return errShort
	}
	return errors.New(strings.Join(all, "; "))
}

var errShort = errors.New("it would end before the lock")

// meta is what an entry says.
func (ro *roll) meta() map[string]string {
	var texts []string
	for _, l := range ro.lists {
		texts = append(texts, l.text)
	}
	return map[string]string{listsKey: strings.Join(texts, " "), "program": program, "pid": pid, "host": host}
}

// compatible reports whether the one who made an entry has a list in common with us:
// both then lock each name at that list's member.
func (ro *roll) compatible(h driver.Holder) bool {
	theirs := strings.Fields(h.Meta[listsKey])
	return slices.ContainsFunc(ro.lists, func(l *list) bool { return slices.Contains(theirs, l.text) })
}
