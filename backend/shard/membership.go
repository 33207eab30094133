package shard

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

const (
	roundTimeout      = 5 * time.Second // for making or renewing one registration
	firstTimeout      = 2 * time.Second // for the first one, where the others suffice
	retryPause        = time.Second     // after a round that failed
	deregisterTimeout = time.Second
)

// listsKey is the key in a registration's Meta for the lists. They are in order, oldest
// first, each as its members' names with commas in between.
const listsKey = "lists"

var (
	program = filepath.Base(os.Args[0])
	pid     = strconv.Itoa(os.Getpid())
	host, _ = os.Hostname()
)

// membership announces this process's lists to other processes, by a registration at each member.
// Locks are trusted while a majority of each list's members has the registration. Two processes
// without a common list can't both have that, if their majorities meet.
type membership struct {
	name          string // of the lock whose read holds are the registrations
	lists         []*list
	registrations []*registration
	of            map[*member]*registration
	epoch         time.Time
	until         atomic.Int64 // since epoch: majorities have registrations until then at least

	mu      sync.Mutex
	ttl     time.Duration // of a registration
	changed chan struct{} // closed after each round of a registration

	end   context.CancelFunc
	tasks wait.Group
}

func newMembership(name string, lists []*list, members []*member, ttl time.Duration) *membership {
	ms := &membership{
		name: name, lists: lists, of: map[*member]*registration{}, epoch: time.Now(),
		ttl: ttl, changed: make(chan struct{}),
	}
	for _, m := range members {
		r := &registration{membership: ms, member: m, wake: wait.NewSignal()}
		ms.registrations, ms.of[m] = append(ms.registrations, r), r
	}
	return ms
}

// start makes and renews the registrations until close.
func (ms *membership) start() {
	life, end := context.WithCancel(context.Background())
	ms.end = end
	for _, r := range ms.registrations {
		ms.tasks.Go(func() { r.run(life) })
	}
}

// close ends the renewals. With deregister it also removes the registrations.
func (ms *membership) close(deregister bool) {
	ms.end()
	ms.tasks.Wait()
	if !deregister {
		return
	}
	for _, r := range ms.registrations {
		ms.tasks.Go(r.deregister)
	}
	ms.tasks.Wait()
}

// awaitFirst waits for the first rounds: until all are over, or for firstTimeout if the
// others suffice. It returns ErrInvalid if another list is in use.
func (ms *membership) awaitFirst(ctx context.Context) error {
	late := time.After(firstTimeout)
	for enough := false; ; {
		ms.mu.Lock()
		changed := ms.changed
		pending := slices.ContainsFunc(ms.registrations, func(r *registration) bool { return r.rounds == 0 })
		conflict := slices.ContainsFunc(ms.registrations, func(r *registration) bool { return r.conflict != nil })
		ms.mu.Unlock()
		if conflict || !pending || enough && ms.registered() {
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
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if err := ms.conflict(); err != nil {
		return err
	}
	if !ms.registered() {
		return ms.tooFew()
	}
	return nil
}

// now returns the time since epoch.
func (ms *membership) now() time.Duration { return time.Since(ms.epoch) }

// registered reports whether a majority of each list's members has the registration.
func (ms *membership) registered() bool { return ms.covers(nil, 0) }

// covers reports whether a lock that is taken at these members now, and lives for ttl, ends
// before the registrations do.
func (ms *membership) covers(at []*member, ttl time.Duration) bool {
	end := int64(ms.now() + ttl)
	for _, m := range at {
		if ms.of[m].until.Load() <= end {
			return false
		}
	}
	return ms.until.Load() > end
}

// cover waits until covers is true, or returns the reason why it can't become true. It
// calls the members only where a registration is missing or too short.
func (ms *membership) cover(ctx context.Context, at []*member, ttl time.Duration) error {
	if ms.covers(at, ttl) {
		return nil
	}
	awaited := ms.prolong(ttl)
	for {
		ms.mu.Lock()
		changed, pending := ms.changed, ms.pending(at, ttl, awaited)
		ms.mu.Unlock()
		switch {
		case ms.covers(at, ttl):
			return nil
		case !pending:
			return ms.uncovered(at)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ms.uncovered(at), ctx.Err())
		}
	}
}

// prolong starts a round of each registration that would end before ttl, for at least twice
// that time. It returns the number of the round that will have done it.
func (ms *membership) prolong(ttl time.Duration) map[*registration]int {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	ms.ttl = max(ms.ttl, 2*ttl)
	awaited, end := map[*registration]int{}, int64(ms.now()+ttl)
	for _, r := range ms.registrations {
		if r.until.Load() > end {
			continue
		}
		awaited[r] = r.rounds + 1
		if r.running {
			awaited[r]++
		}
		r.wake.Notify()
	}
	return awaited
}

// pending reports whether awaited rounds can still make covers true. ms.mu is held.
func (ms *membership) pending(at []*member, ttl time.Duration, awaited map[*registration]int) bool {
	for _, m := range at {
		if r := ms.of[m]; r.rounds >= awaited[r] && r.until.Load() <= int64(ms.now()+ttl) {
			return false
		}
	}
	return slices.ContainsFunc(ms.registrations, func(r *registration) bool { return r.rounds < awaited[r] })
}

// update computes until anew, and wakes callers that wait for changes. ms.mu is held.
func (ms *membership) update() {
	end := int64(1<<63 - 1)
	for _, l := range ms.lists {
		var ends []int64
		for _, m := range l.members {
			ends = append(ends, ms.of[m].until.Load())
		}
		slices.Sort(ends)
		end = min(end, ends[len(ends)-l.majority()])
	}
	ms.until.Store(end)
	close(ms.changed)
	ms.changed = make(chan struct{})
}

// uncovered returns the reason why nothing can be locked at these members now. It is final
// if a process with another list is the reason.
func (ms *membership) uncovered(at []*member) error {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if !ms.registered() {
		if err := ms.conflict(); err != nil {
			return err
		}
		return ms.tooFew()
	}
	var missing []*registration
	for _, m := range at {
		missing = append(missing, ms.of[m])
	}
	return fmt.Errorf("shard: the list of members is not registered at the lock's member: %w", failures(missing))
}

// conflict returns ErrInvalid if the last round of a registration found another list.
// ms.mu is held.
func (ms *membership) conflict() error {
	for _, r := range ms.registrations {
		if r.conflict != nil {
			return r.conflict
		}
	}
	return nil
}

func (ms *membership) tooFew() error {
	return fmt.Errorf("shard: the list of members could not be registered at a majority of them; with fewer, processes with another list would not be noticed (%w)", failures(ms.registrations))
}

// failures returns the problems of registrations, as an error that is not one of the driver's
// facts. The membership's mutex is held.
func failures(registrations []*registration) error {
	var all []string
	for _, r := range registrations {
		switch {
		case r.err != nil:
			all = append(all, fmt.Sprintf("%s: %v", r.member.Name, r.err))
		case r.rounds == 0:
			all = append(all, r.member.Name+": no answer yet")
		}
	}
	if len(all) == 0 {
		return errTooShort
	}
	return errors.New(strings.Join(all, "; "))
}

var errTooShort = errors.New("it would end before the lock")

// meta returns the Meta of a registration.
func (ms *membership) meta() map[string]string {
	var texts []string
	for _, l := range ms.lists {
		texts = append(texts, l.text)
	}
	return map[string]string{listsKey: strings.Join(texts, " "), "program": program, "pid": pid, "host": host}
}

// compatible reports whether the process that registered h has a list in common with this
// one. Then both lock each name at that list's member.
func (ms *membership) compatible(h driver.Holder) bool {
	theirs := strings.Fields(h.Meta[listsKey])
	return slices.ContainsFunc(ms.lists, func(l *list) bool { return slices.Contains(theirs, l.text) })
}

// registration is a read hold at one member, which shows the lists of this backend. It is
// made before looking for others: if two processes come at the same time, at least one
// sees the other.
type registration struct {
	*membership
	member   *member
	wake     wait.Signal
	until    atomic.Int64  // since the epoch: it exists until then at least; 0: it doesn't
	ownerTTL time.Duration // that was requested for owner; used by run only

	// Guarded by membership.mu.
	owner    string // "" if nothing may be there
	made     bool   // it exists, and no other list was found
	rounds   int    // that are over
	running  bool
	err      error // of the last round
	conflict error // ErrInvalid: the last round found another list
}

// run makes and renews the registration until ctx ends.
func (r *registration) run(ctx context.Context) {
	for {
		timer := time.NewTimer(r.round(ctx))
		select {
		case <-timer.C:
		case <-r.wake:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// round makes or renews the registration once, and returns the pause before the next round.
func (r *registration) round(ctx context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	r.mu.Lock()
	r.running = true
	ttl, owner, made := r.ttl, r.owner, r.made
	r.mu.Unlock()

	hold := driver.Hold{Name: r.name, Owner: owner, Mode: driver.Read, TTL: ttl}
	start := r.now()
	var err error
	if made {
		err = r.member.RenewOne(ctx, hold)
		switch {
		case errors.Is(err, driver.ErrLost):
			made = false
			r.lost(owner)
			hold.Owner = ""
		case errors.Is(err, driver.ErrUnsupported):
			start = r.now()
			hold, err = r.replace(ctx, hold)
		}
	}
	if !made {
		start = r.now()
		hold, err = r.register(ctx, hold)
	}
	return r.finish(hold, start, err)
}

// register makes the registration. It returns which Owner may be there, and for how long.
func (r *registration) register(ctx context.Context, h driver.Hold) (driver.Hold, error) {
	if h.Owner == "" {
		h.Owner, r.ownerTTL = driver.NewOwner(), h.TTL
		r.mu.Lock()
		r.owner = h.Owner
		r.mu.Unlock()
	}
	h.TTL = r.ownerTTL // an Owner repeats the same request
	owner := h.Owner
	h, conflict, err := r.acquire(ctx, h, func() { r.lost(owner) })
	if errors.Is(err, driver.ErrSpent) {
		r.lost(owner) // the next attempt needs a fresh one
	}
	if conflict == nil {
		return h, err
	}
	r.lost(owner)
	if err := r.member.Release(ctx, h); err != nil && !errors.Is(err, driver.ErrLost) {
		return driver.Hold{}, fmt.Errorf("%w; and this process's registration stays there for %v: %v", conflict, h.TTL, err)
	}
	return driver.Hold{}, conflict
}

// replace makes a new registration beside one that can't be prolonged, as in a session, and
// then removes the old one. So there is always one.
func (r *registration) replace(ctx context.Context, old driver.Hold) (driver.Hold, error) {
	owner, lost := driver.NewOwner(), atomic.Bool{}
	h := old
	h.Owner = owner
	h, conflict, err := r.acquire(ctx, h, func() {
		lost.Store(true)
		r.lost(owner)
	})
	if err == nil {
		err = conflict
	}
	if err != nil {
		_ = r.member.Release(ctx, h)
		return old, err
	}
	r.mu.Lock()
	r.owner, r.ownerTTL = owner, old.TTL
	r.mu.Unlock()
	if lost.Load() { // perhaps before it was r.owner
		r.lost(owner)
	}
	_ = r.member.Release(ctx, old) // if it fails, it ends with its TTL
	return h, nil
}

// acquire takes the registration's hold, and then looks for processes without a common list:
// conflict names one.
func (r *registration) acquire(ctx context.Context, h driver.Hold, onLost func()) (_ driver.Hold, conflict, err error) {
	grant, err := r.member.Acquire(ctx, driver.Request{Hold: h, Fences: 1, Meta: r.meta(), OnLost: onLost})
	if err != nil {
		return h, nil, fmt.Errorf("registering the list: %w", err)
	}
	h.TTL = min(h.TTL, grant.TTL)
	conflict, err = r.findConflict(ctx, h.Owner)
	return h, conflict, err
}

// findConflict returns a conflict if a process without a common list is registered.
func (r *registration) findConflict(ctx context.Context, owner string) (conflict, err error) {
	info, err := r.member.Inspect(ctx, r.name)
	if err != nil {
		return nil, fmt.Errorf("looking for other lists: %w", err)
	}
	found := false
	for _, h := range info.Holders {
		switch {
		case h.Owner == owner:
			found = true
		case !r.compatible(h):
			return r.conflictWith(h), nil
		}
	}
	if !found {
		return nil, errUnseen
	}
	return nil, nil
}

var errUnseen = errors.New("looking for other lists: the own registration is missing")

func (r *registration) conflictWith(h driver.Holder) error {
	theirs := "no list"
	if text := h.Meta[listsKey]; text != "" {
		theirs = "the list " + text
	}
	process := h.String()
	if process == "" {
		process = "a process"
	}
	return fmt.Errorf("%w: shard: this list is %s, but at member %s %s works with %s; processes that share locks need a list in common (see Joining and Leaving)",
		driver.ErrInvalid, r.meta()[listsKey], r.member.Name, process, theirs)
}

// finish stores the result of a round, and returns the pause before the next one.
func (r *registration) finish(h driver.Hold, start time.Duration, err error) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running, r.err, r.conflict = false, err, nil
	r.rounds++
	switch {
	case err == nil && r.owner == h.Owner:
		r.made = true
		r.until.Store(int64(start + h.TTL))
	case errors.Is(err, driver.ErrInvalid) && h.Owner == "":
		r.conflict = err
	}
	r.update()
	if err != nil || !r.made {
		return retryPause
	}
	return h.TTL / 6
}

// lost notes that owner's registration is gone.
func (r *registration) lost(owner string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.owner != owner {
		return
	}
	r.owner, r.made = "", false
	r.until.Store(0)
	r.update()
	if !r.running {
		r.wake.Notify()
	}
}

// deregister removes the registration at the end. If that fails, it ends with its TTL.
func (r *registration) deregister() {
	r.mu.Lock()
	owner := r.owner
	r.mu.Unlock()
	if owner == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), deregisterTimeout)
	defer cancel()
	_ = r.member.Release(ctx, driver.Hold{Name: r.name, Owner: owner, Mode: driver.Read})
}
