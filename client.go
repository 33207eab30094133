package distlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/opening"
	"github.com/distlock/distlock/internal/release"
	"github.com/distlock/distlock/internal/renew"
	"github.com/distlock/distlock/internal/wait"
)

// Client makes locks on one backend. It is safe for concurrent use. A program needs one per
// backend.
type Client struct {
	env
	queues  queues
	die     context.CancelFunc // of life
	closing sync.Once
	closed  error        // what Close returns
	longest atomic.Int64 // the greatest CallTimeout of a lock

	defaults [driver.Counted + 1]atomic.Pointer[lockTerms] // by mode
}

// Open connects to the backend of a URL, and returns a client on it. The URL's scheme must have been
// registered by an import:
//
//	import _ "github.com/distlock/distlock/backend/redislock"
//
// or backend/all for every one. A nil opts means all defaults. A malformed URL, an unknown scheme
// or parameter, and options that contradict each other or the backend are ErrInvalid; a backend
// that can't be reached is ErrUnavailable. Errors never show a password.
func Open(ctx context.Context, url string, opts *Options) (*Client, error) {
	b, err := opening.Open(ctx, url)
	if err != nil {
		return nil, fail("open", driver.Redact(url), err)
	}
	c, err := New(b, opts)
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return c, nil
}

// New returns a client on a backend that the caller has made. The client owns the backend from then
// on: Close closes it. A nil opts means all defaults. New returns ErrInvalid for options that
// contradict each other or the backend; then the backend stays the caller's.
func New(b driver.Backend, opts *Options) (*Client, error) {
	if b == nil {
		return nil, fail("new", "", invalid("the backend is nil; open one, for instance with memlock.New"))
	}
	c := &Client{env: env{backend: b, caps: b.Caps(), base: time.Now(), owners: driver.NewOwners(), done: make(chan struct{})}}
	c.tasks.idle = wait.NewSignal()
	c.life, c.die = context.WithCancel(context.Background())
	if opts != nil {
		c.opts = *opts
	}
	if err := c.fillOptions(); err != nil {
		return nil, fail("new", "", err)
	}
	if _, pushes := b.(driver.Watcher); !pushes {
		c.polls.Store(true)
	}
	c.queues.init(&c.env)
	c.watchdog = renew.New(renew.Config{Life: c.life, Now: c.now, Renew: b.Renew, Tasks: &c.tasks})
	c.releaser = release.New(release.Config{Life: c.life, Now: c.now, Release: b.Release, Session: c.endless(), Tasks: &c.tasks, Unanswered: c.releaseUnanswered})
	return c, nil
}

// releaseUnanswered reports that a release in the background had no answer.
func (c *Client) releaseUnanswered(h driver.Hold, err error) {
	emit(c.observer.Unanswered, Event{Context: context.Background(), Op: "release", Name: h.Name, Mode: h.Mode, Owner: h.Owner, Err: err}, nil)
}

func (c *Client) fillOptions() error {
	o := &c.opts
	if o.TTL == 0 {
		o.TTL = max(DefaultTTL, c.caps.MinTTL)
		if c.caps.MaxTTL > 0 {
			o.TTL = min(o.TTL, c.caps.MaxTTL)
		}
	}
	o.HandoffMax = cmp.Or(o.HandoffMax, DefaultHandoffMax)
	o.HandoffWindow = cmp.Or(o.HandoffWindow, DefaultHandoffWindow)
	if o.Observer != nil {
		c.observer = *o.Observer
	}
	if err := checkMeta(o.Meta); err != nil {
		return err
	}
	o.Meta = processMeta(o.Meta)
	switch {
	case o.HandoffMax < -1:
		return invalid("Options.HandoffMax %d; want -1 or more", o.HandoffMax)
	case o.HandoffWindow < 0:
		return invalid("Options.HandoffWindow %v; want no negative time", o.HandoffWindow)
	case o.HandoffWindow > driver.MaxTTL:
		return invalid("Options.HandoffWindow %v; want at most %v", o.HandoffWindow, driver.MaxTTL)
	case o.MaxHold < 0:
		return invalid("Options.MaxHold %v; want no negative time", o.MaxHold)
	case o.CallTimeout < 0:
		return invalid("Options.CallTimeout %v; want no negative time", o.CallTimeout)
	}
	probe := c.newSpec("any", Exclusive, 0, nil)
	c.calls.timeout = probe.terms.CallTimeout
	return probe.checkTimes(c.caps)
}

// processMeta returns meta with entries that identify this process.
func processMeta(meta map[string]string) map[string]string {
	m := map[string]string{"pid": strconv.Itoa(os.Getpid()), "program": strings.ToValidUTF8(filepath.Base(os.Args[0]), "?")}
	if host, err := os.Hostname(); err == nil {
		m["host"] = strings.ToValidUTF8(host, "?")
	}
	maps.Copy(m, meta)
	return m
}

// newSpec returns the client's defaults, changed by opts.
func (c *Client) newSpec(name string, mode Mode, limit int, opts []LockOption) *spec {
	s := &spec{name: name}
	if len(opts) == 0 {
		s.lockTerms = c.defaultTerms(mode, limit)
	} else {
		s.lockTerms = c.newTerms(mode, limit)
		for _, o := range opts {
			if o.apply != nil {
				o.apply(s)
			}
		}
		c.completeTerms(s.lockTerms)
	}
	s.bad = s.check(c.caps)
	return s
}

// defaultTerms returns the terms of locks without options, which share the last ones of their mode.
func (c *Client) defaultTerms(mode Mode, limit int) *lockTerms {
	last := &c.defaults[mode]
	if t := last.Load(); t != nil && t.limit == limit {
		return t
	}
	t := c.newTerms(mode, limit)
	c.completeTerms(t)
	last.Store(t)
	return t
}

func (c *Client) newTerms(mode Mode, limit int) *lockTerms {
	return &lockTerms{
		mode: mode, limit: limit, noHandoff: c.opts.HandoffMax < 0, meta: c.opts.Meta,
		terms: renew.Terms{TTL: c.opts.TTL, Margin: c.opts.Margin, CallTimeout: c.opts.CallTimeout, MaxHold: c.opts.MaxHold},
	}
}

// completeTerms sets what follows from the options.
func (c *Client) completeTerms(t *lockTerms) {
	t.terms.Margin = cmp.Or(t.terms.Margin, min(t.terms.TTL/10, time.Second))
	t.terms.CallTimeout = cmp.Or(t.terms.CallTimeout, renew.DefaultCallTimeout(t.terms.TTL))
	t.alone, t.queued, t.fences = t.mode.Alone(), c.caps.QueueingOf(t.mode) != driver.QueueNever, 1
	if t.canHandOff() {
		t.fences = uint64(c.opts.HandoffMax) + 1
	}
	for d := int64(t.terms.CallTimeout); ; {
		if old := c.longest.Load(); old >= d || c.longest.CompareAndSwap(old, d) {
			break
		}
	}
}

// Caps returns what the client's backend can do.
func (c *Client) Caps() driver.Caps { return c.caps }

// Close ends the client: waiting calls return ErrClosed, every lease's context is cancelled with
// that cause, every hold is released, and the backend is closed. Close takes a few CallTimeouts at
// most, except where it waits for the end of a MinHold. Its error counts the holds that could not be
// released by then. They end with their TTL. Another call returns the same.
func (c *Client) Close() error {
	c.closing.Do(func() {
		close(c.done)
		var report func()
		report, c.closed = c.shutdown()
		report()
	})
	return c.closed
}

// shutdown closes the client, and returns the function that reports the releases.
func (c *Client) shutdown() (report func(), err error) {
	c.queues.dismiss()
	kept, others, reports := c.endLeases()
	waits := c.caps.Session && len(kept) > 0
	if !waits {
		c.die()
	}
	ctx, cancel := c.lastCalls()
	defer func() { cancel() }()
	left := c.releaseAll(ctx, others)
	short := failing(kept, func(h *hold) error {
		if reports[h] == nil {
			return h.prolong(ctx) // an Unlock keeps it already
		}
		return h.keep(ctx)
	})
	if waits {
		awaitMinHold(kept)
		c.die()
		cancel()
		ctx, cancel = c.lastCalls()
	}
	idle := c.tasks.wait(ctx)
	c.watchdog.Stop()
	unanswered := c.releaser.Stop() - len(left)
	err = c.backend.Close()
	c.calls.close()
	switch {
	case unanswered > 0:
		err = errors.Join(err, fmt.Errorf("%d releases had no answer; the locks they are for end with their TTL", unanswered))
	case !idle && len(left) == 0:
		err = errors.Join(err, errors.New("calls are still under way; what they take ends with its TTL"))
	}
	if len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("%d locks were not released; they end with their TTL", len(left)))
	}
	if len(short) > 0 {
		err = errors.Join(err, fmt.Errorf("%d locks may end before MinHold is over: they could not be prolonged", len(short)))
	}
	report = func() {
		for h, report := range reports {
			report(cmp.Or(left[h], short[h]))
		}
	}
	if err != nil {
		err = fail("close", "", err)
	}
	return report, err
}

// lastCalls returns the context of calls that Close makes.
func (c *Client) lastCalls() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 2*time.Duration(c.longest.Load()))
}

// endLeases ends all leases, without a call: the holds at the back of a long list may wait for longer than their trust
// lasts. It returns the holds that MinHold keeps, the others that it has ended, and the functions that report the
// release of those that it has ended.
func (c *Client) endLeases() (kept, others []*hold, reports map[*hold]func(error)) {
	reports = map[*hold]func(error){}
	for _, holder := range c.watchdog.Close(func(o renew.Holder) bool { return o.(*hold).minHoldLeft() > 0 }) {
		h := holder.(*hold)
		event, done := h.end(ended, ErrClosed)
		if done {
			reports[h] = func(err error) {
				event.Err = err
				emit(c.observer.Released, event, nil)
			}
		}
		switch {
		case h.minHoldLeft() > 0:
			kept = append(kept, h)
		case done:
			others = append(others, h)
		}
	}
	return kept, others, reports
}

// awaitMinHold waits until MinHold is over for all of them.
func awaitMinHold(kept []*hold) {
	for _, h := range kept {
		time.Sleep(h.minHoldLeft())
	}
}

// releaseAll releases holds whose leases have ended, many at a time, and returns those that were left when ctx
// ended, and why. It calls the backend once more for the holds without an answer, after all others.
func (c *Client) releaseAll(ctx context.Context, closed []*hold) map[*hold]error {
	silent := failing(closed, func(h *hold) error {
		short, cancel := context.WithTimeout(ctx, h.s.terms.CallTimeout/4)
		defer cancel()
		return unlessLost(h.release(short, 1))
	})
	return failing(slices.Collect(maps.Keys(silent)), func(h *hold) error { return unlessLost(h.giveUp(ctx)) })
}

// unlessLost returns err, or nil for a hold that is gone.
func unlessLost(err error) error {
	if errors.Is(err, ErrLost) {
		return nil
	}
	return err
}

// How many holds Close releases at once: few, and more as long as that makes no call slower. Then the distance to the store
// takes the time, and not the store.
const (
	fewAtOnce  = 64
	mostAtOnce = 1024
)

// failing calls f for all holds, many at a time, and returns its errors.
func failing(holds []*hold, f func(*hold) error) map[*hold]error {
	var mu sync.Mutex
	var wg wait.Group
	more := sync.NewCond(&mu)
	left, room, most, fastest := map[*hold]error{}, fewAtOnce, fewAtOnce, time.Duration(math.MaxInt64)
	for _, h := range holds {
		mu.Lock()
		for room == 0 {
			more.Wait()
		}
		room--
		mu.Unlock()
		wg.Go(func() {
			start := time.Now()
			err := f(h)
			took := time.Since(start)
			mu.Lock()
			defer mu.Unlock()
			room, fastest = room+1, min(fastest, took)
			if err != nil {
				left[h] = err
			} else if took <= 2*fastest && most < mostAtOnce {
				room, most = room+1, most+1
			}
			more.Signal()
		})
	}
	wg.Wait()
	return left
}
