package shard

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
)

const (
	roundTimeout = 5 * time.Second // of renewing, or making, one entry
	firstTimeout = 2 * time.Second // of the first one, where the others are enough
	tryAgain     = time.Second     // after an entry could not be made or renewed
	lastTimeout  = time.Second     // of taking one away at the end
)

// listsKey is where an entry's Meta has the lists, oldest first, each as its members' names
// with commas in between.
const listsKey = "lists"

var (
	program = filepath.Base(os.Args[0])
	pid     = strconv.Itoa(os.Getpid())
	host, _ = os.Hostname()
)

// entry is a hold, of those who read, that says which lists this backend works with. It
// was made first and looked at then, so that of two who come at the same time at least one
// sees the other.
type entry struct {
	*roll
	member *member
	poke   chan struct{}
	until  atomic.Int64  // since the roll's epoch: it stands at least until then; 0: it doesn't
	asked  time.Duration // the TTL that owner has asked for; keep's own

	// Guarded by roll.mu.
	owner   string // "" if nothing may be there
	entered bool   // it is there, and nobody with another list was
	rounds  int    // that are over
	running bool
	err     error // of the last round
	other   error // ErrInvalid: somebody with another list was there in the last round
}

func (e *entry) wake() {
	select {
	case e.poke <- struct{}{}:
	default:
	}
}

// keep makes and renews the entry until ctx ends.
func (e *entry) keep(ctx context.Context) {
	for {
		pause := e.round(ctx)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-e.poke:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// round makes or renews the entry once, and says when to do so again.
func (e *entry) round(ctx context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	e.mu.Lock()
	e.running = true
	life, owner, entered := e.life, e.owner, e.entered
	e.mu.Unlock()

	hold := driver.Hold{Name: e.name, Owner: owner, Mode: driver.Read, TTL: life}
	start := e.now()
	var err error
	if entered {
		err = renewOne(ctx, e.member, hold)
		switch {
		case errors.Is(err, driver.ErrLost):
			entered = false
			e.gone(owner)
			hold.Owner = ""
		case errors.Is(err, driver.ErrUnsupported):
			start = e.now()
			hold, err = e.replace(ctx, hold)
		}
	}
	if !entered {
		start = e.now()
		hold, err = e.enter(ctx, hold)
	}
	return e.over(hold, start, err)
}

// enter makes the entry and then looks who else is there. What it returns says which
// Owner may be there, and until when.
func (e *entry) enter(ctx context.Context, h driver.Hold) (driver.Hold, error) {
	if h.Owner == "" {
		h.Owner, e.asked = driver.NewOwner(), h.TTL
		e.mu.Lock()
		e.owner = h.Owner
		e.mu.Unlock()
	}
	h.TTL = e.asked // an Owner asks for the same again
	owner := h.Owner
	h, other, err := e.stand(ctx, h, func() { e.gone(owner) })
	if other == nil {
		return h, err
	}
	e.gone(owner)
	if err := e.member.Release(ctx, h); err != nil && !errors.Is(err, driver.ErrLost) {
		return driver.Hold{}, fmt.Errorf("%w; and the entry that was made there stays for %v: %v", other, h.TTL, err)
	}
	return driver.Hold{}, other
}

// replace makes another entry beside one that can't live for longer, as in a session,
// and takes that away then: at each moment one stands.
func (e *entry) replace(ctx context.Context, old driver.Hold) (driver.Hold, error) {
	owner, lost := driver.NewOwner(), atomic.Bool{}
	h := old
	h.Owner = owner
	h, other, err := e.stand(ctx, h, func() {
		lost.Store(true)
		e.gone(owner)
	})
	if err == nil {
		err = other
	}
	if err != nil {
		_ = e.member.Release(ctx, h)
		return old, err
	}
	e.mu.Lock()
	e.owner, e.asked = owner, old.TTL
	e.mu.Unlock()
	if lost.Load() { // perhaps before it was e.owner
		e.gone(owner)
	}
	_ = e.member.Release(ctx, old) // else it ends by itself
	return h, nil
}

// stand makes an entry, tells for how long, and looks whether somebody has no list in
// common with us: other says who.
func (e *entry) stand(ctx context.Context, h driver.Hold, onLost func()) (_ driver.Hold, other, err error) {
	grant, err := e.member.Acquire(ctx, driver.Request{Hold: h, Fences: 1, Meta: e.meta(), OnLost: onLost})
	if err != nil {
		return h, nil, fmt.Errorf("entering the list: %w", err)
	}
	h.TTL = min(h.TTL, grant.TTL)
	other, err = e.look(ctx, h.Owner)
	return h, other, err
}

// look answers other if somebody has no list in common with us.
func (e *entry) look(ctx context.Context, owner string) (other, err error) {
	i, ok := e.member.Backend.(driver.Inspector)
	if !ok {
		return nil, fmt.Errorf("%w: it can't tell who else has entered a list", driver.ErrUnsupported)
	}
	info, err := i.Inspect(ctx, e.name)
	if err != nil {
		return nil, fmt.Errorf("looking for other lists: %w", err)
	}
	found := false
	for _, h := range info.Holders {
		switch {
		case h.Owner == owner:
			found = true
		case !e.compatible(h):
			return e.conflict(h), nil
		}
	}
	if !found {
		return nil, errUnseen
	}
	return nil, nil
}

var errUnseen = errors.New("looking for other lists: the own entry is not seen")

func (e *entry) conflict(h driver.Holder) error {
	theirs := "no list"
	if text := h.Meta[listsKey]; text != "" {
		theirs = "the list " + text
	}
	who := h.String()
	if who == "" {
		who = "somebody"
	}
	return fmt.Errorf("%w: shard: this list is %s, but at member %s %s works with %s; processes that share locks need a list in common (see Joining and Leaving)",
		driver.ErrInvalid, e.meta()[listsKey], e.member.name, who, theirs)
}

// over enters what a round has found.
func (e *entry) over(h driver.Hold, start time.Duration, err error) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running, e.err, e.other = false, err, nil
	e.rounds++
	switch {
	case err == nil && e.owner == h.Owner:
		e.entered = true
		e.until.Store(int64(start + h.TTL))
	case errors.Is(err, driver.ErrInvalid) && h.Owner == "":
		e.other = err
	}
	e.settle()
	if err != nil || !e.entered {
		return tryAgain
	}
	return h.TTL / 6
}

// gone notes that an owner's entry is there no more.
func (e *entry) gone(owner string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.owner != owner {
		return
	}
	e.owner, e.entered = "", false
	e.until.Store(0)
	e.settle()
	if !e.running {
		e.wake()
	}
}

// withdraw takes the entry away at the end.
func (e *entry) withdraw() {
	e.mu.Lock()
	owner := e.owner
	e.mu.Unlock()
	if owner == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastTimeout)
	defer cancel()
	// If it fails the entry ends with its TTL: nothing can be done about it.
	_ = e.member.Release(ctx, driver.Hold{Name: e.name, Owner: owner, Mode: driver.Read})
}

// renewOne renews one hold at one member.
func renewOne(ctx context.Context, m *member, h driver.Hold) error {
	if errs := m.Renew(ctx, []driver.Hold{h}); len(errs) == 1 {
		return errs[0]
	}
	return errNoAnswer
}

var errNoAnswer = errors.New("the member gave no answer")
