package redislock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
)

// Layout is how locks are written in Redis. All users of a lock must agree on it.
type Layout string

// The layouts. They differ in exclusive locks; read/write locks and semaphores are
// written as Redisson does in both.
const (
	// String is the default: a string key, as everybody writes it who locks with
	// SET name value NX PX.
	String Layout = "string"

	// Redisson is that of Redisson's RLock and RFencedLock, for locks shared with Java.
	Redisson Layout = "redisson"
)

// Options are how a Backend uses Redis. The zero value is the default.
type Options struct {
	// Layout is String if empty.
	Layout Layout

	// Prefix is put before every lock's name, to keep the locks of several
	// applications apart. Java's side needs a NameMapper that does the same.
	Prefix string

	// Name is what Caps call the server; it must be the same in every process.
	// The default is made of the client's address and database.
	Name string

	// Scripts is ScriptsAuto if empty.
	Scripts Scripts

	// PubSub is PubSubAuto if empty.
	PubSub PubSub

	// Replicas is how many replicas must have acknowledged a lock before it counts as
	// taken or renewed; 0, the default, does not ask them. An attempt that too few
	// acknowledge is given back, and is an error that says how many there were. See
	// the package's comment for what that prevents.
	Replicas int

	// ReplicaTimeout is how long an attempt waits for them; the default is 1s. It must
	// be less than the client waits for an answer, and should be much less than a TTL.
	ReplicaTimeout time.Duration
}

// Backend keeps locks in Redis. It is safe for concurrent use.
type Backend struct {
	client        redisconn.Client
	layout        *layout
	prefix        string
	replicas      replicas
	adrift        adrift      // what was given up, and may still happen
	scriptless    *scriptless // nil if scripts are used
	caps          driver.Caps
	meta          lastMeta
	pubsub        *redisconn.PubSub
	subscriptions *redisconn.Subscriptions
	releases      *releaseNotifier
	closed        atomic.Bool
	once          sync.Once
}

var (
	_ driver.Backend   = (*Backend)(nil)
	_ driver.Watcher   = (*Backend)(nil)
	_ driver.Inspector = (*Backend)(nil)
)

func newBackend(c redisconn.Client, opts *Options) (*Backend, error) {
	if opts == nil {
		opts = &Options{}
	}
	b := &Backend{client: c, prefix: opts.Prefix}
	var err error
	mode, err := opts.PubSub.mode(c)
	if err != nil {
		return nil, err
	}
	b.pubsub = redisconn.NewPubSub(mode)
	b.subscriptions = redisconn.NewSubscriptions(c, b.pubsub)
	b.releases = newReleaseNotifier(b.subscriptions)
	if err := b.checkPrefix(); err != nil {
		return nil, fmt.Errorf("prefix: %w", err)
	}
	switch opts.Layout {
	case "", String:
		b.layout = stringLayout(c.Strict())
	case Redisson:
		b.layout = redissonLayout()
	default:
		return nil, fmt.Errorf("%w: layout %q: want %q or %q", driver.ErrInvalid, opts.Layout, String, Redisson)
	}
	if b.replicas, err = newReplicas(opts); err != nil {
		return nil, err
	}
	b.caps = driver.Caps{
		Name: opts.Name, Modes: driver.AllModes,
		Fence: true, Floor: true, Downgrade: true,
		Queueing: driver.QueueOnRequest, QueuedModes: driver.Modes(driver.Exclusive),
		MinTTL: 10 * time.Millisecond, MaxTTL: maxTTL,
	}
	if b.layout.span > 1 {
		// A script for each hand-off would make locks that are not fair a hundred times slower.
		b.caps.SpanLife = spanLife
	}
	if b.caps.Name == "" {
		b.caps.Name = c.Name()
	}
	switch opts.Scripts {
	case "", ScriptsAuto:
	case ScriptsOff:
		return b, b.withoutScripts()
	default:
		return nil, fmt.Errorf("%w: scripts %q: want %q or %q", driver.ErrInvalid, opts.Scripts, ScriptsAuto, ScriptsOff)
	}
	return b, nil
}

// withoutScripts makes a new backend one that uses none.
func (b *Backend) withoutScripts() error {
	if b.layout.span == 1 {
		return fmt.Errorf("%w: the layout %q needs scripts, and they are off or forbidden to the server's user", driver.ErrUnsupported, Redisson)
	}
	b.scriptless = newScriptless(b)
	b.caps.Modes, b.caps.Downgrade = driver.Modes(driver.Exclusive), false
	b.caps.Queueing, b.caps.QueuedModes, b.caps.SpanLife = driver.QueueNever, 0, 0
	return nil
}

// Caps says what the backend can do.
func (b *Backend) Caps() driver.Caps { return b.caps }

// Acquire makes one attempt, in one round trip.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := b.acquire(ctx, r)
	b.adrift.note(r.Owner, err)
	return g, err
}

func (b *Backend) acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	rec, err := b.recipe(r.Hold)
	if err != nil {
		return driver.Grant{}, err
	}
	if err := checkTTL(r.TTL); err != nil {
		return driver.Grant{}, err
	}
	if r.Queue && b.caps.QueueingOf(r.Mode) == driver.QueueNever {
		return driver.Grant{}, fmt.Errorf("%w: a place in line for a %v lock: in Redis only exclusive locks have a line, and it needs scripts", driver.ErrUnsupported, r.Mode)
	}
	if r.Mode == driver.Counted && r.Limit < 1 {
		return driver.Grant{}, fmt.Errorf("%w: a semaphore of %d permits: want at least 1", driver.ErrInvalid, r.Limit)
	}
	if b.scriptless != nil {
		return b.scriptless.acquire(ctx, r)
	}
	reply, err := b.take(ctx, rec, r)
	if err != nil {
		return driver.Grant{}, b.fail("acquire", r.Name, b.named(r.Name, err))
	}
	b.releases.retried(r.Owner)
	id, ok := reply.(string)
	if !ok {
		return driver.Grant{}, b.refused(ctx, r, reply)
	}
	id, queued := strings.CutSuffix(id, "+")
	fence, err := b.layout.fence(id)
	if err != nil {
		return driver.Grant{}, b.fail("acquire", r.Name, fmt.Errorf("the fence counter answered %q: %w", id, err))
	}
	g := driver.Grant{Fence: fence, Fences: min(max(r.Fences, 1), rec.span), Queued: queued, TTL: r.TTL}
	if queued {
		g.Fences = 1
	}
	return g, nil
}

func (b *Backend) takeCall(rec *recipe, r driver.Request) (keys, args []string) {
	name := b.prefix + r.Name
	keys = append(rec.keys(name, r.Owner), b.layout.counter(b.prefix, r.Name))
	note := b.meta.noteStart(r.Owner, r.Meta)
	if r.Mode == driver.Exclusive && b.layout.span > 1 {
		// The note is the value, and begins with all that the script needs.
		return keys, []string{note, millis(r.TTL), bit(r.Queue)}
	}
	args = []string{rec.writer(r.Owner), millis(r.TTL), note}
	if rec.takeArgs != nil {
		args = append(args, rec.takeArgs(name, r)...)
	}
	return keys, args
}

// refused makes the error of a refusal, in a second round trip if a number is in the way.
func (b *Backend) refused(ctx context.Context, r driver.Request, reply any) error {
	err := b.held(r, reply)
	held := (*driver.HeldError)(nil)
	if r.Mode == driver.Exclusive && errors.As(err, &held) && len(held.Holders) > 0 && b.counts(ctx, r.Name, held.Holders[0].Owner) {
		return fmt.Errorf("%w: this name is a semaphore", driver.ErrInvalid)
	}
	return err
}

// counts reports whether a lock's value is a semaphore's counter. Others lock with
// numbers too: what tells is that somebody holds a permit.
func (b *Backend) counts(ctx context.Context, name, value string) bool {
	if _, err := strconv.ParseInt(value, 10, 64); err != nil {
		return false
	}
	key := b.prefix + name
	reply, err := b.client.Do(ctx, key, []string{"EXISTS", permitsKey(key)})
	return err == nil && reply == int64(1)
}

// held makes the error of a refusal by a holder: how many ms are left, and the note of the holder
// if the script saw it.
func (b *Backend) held(r driver.Request, reply any) error {
	list, ok := reply.([]any)
	if !ok || len(list) == 0 {
		return b.fail("acquire", r.Name, fmt.Errorf("unexpected answer %v", reply))
	}
	e := &driver.HeldError{}
	left, _ := list[0].(int64)
	if d := lifeLeft(left); d >= 0 {
		// The key ends in the course of its last millisecond.
		e.Retry = d + time.Millisecond
	}
	if len(list) > 1 {
		if value, ok := list[1].(string); ok {
			e.Holders = []driver.Holder{b.stringHolder(value, 0, left)}
		}
	}
	return e
}

// Release ends a hold, in one round trip.
func (b *Backend) Release(ctx context.Context, h driver.Hold) error {
	rec, err := b.recipe(h)
	if err == nil {
		err = b.adrift.wait(ctx, h.Owner)
	}
	if err != nil {
		return err
	}
	if b.scriptless != nil {
		return b.scriptless.release(ctx, h)
	}
	name := b.prefix + h.Name
	args := []string{rec.writer(h.Owner), rec.channel(name)}
	if rec.dropArgs != nil {
		args = append(args, rec.dropArgs(name)...)
	}
	reply, err := b.run(ctx, rec.drop, rec.keys(name, h.Owner), args)
	if err != nil {
		return b.fail("release", h.Name, err)
	}
	if reply == int64(0) {
		return driver.ErrLost
	}
	return nil
}

// Close ends the backend's connections: that for subscriptions, and those of a client
// that Open made. A client given to NewGoRedis or NewRueidis stays open.
func (b *Backend) Close() error {
	b.closed.Store(true)
	b.once.Do(func() {
		b.subscriptions.Cancel()
		b.client.Close()
		b.subscriptions.Close()
	})
	return nil
}

// recipe is how a hold is written.
func (b *Backend) recipe(h driver.Hold) (*recipe, error) {
	if b.closed.Load() {
		return nil, driver.ErrClosed
	}
	if !b.caps.Modes.Has(h.Mode) && b.scriptless != nil && driver.AllModes.Has(h.Mode) {
		return nil, fmt.Errorf("mode %v: %w", h.Mode, errNoScripts)
	}
	if !b.caps.Modes.Has(h.Mode) {
		return nil, fmt.Errorf("%w: mode %v", driver.ErrUnsupported, h.Mode)
	}
	return b.layout.recipes[h.Mode], b.checkName(h.Name)
}

// maxTTL keeps the sum of a clock and a TTL far from overflow.
const maxTTL = 100 * 365 * 24 * time.Hour

// checkTTL refuses a TTL that Redis would not take either, but as an error of its own.
func checkTTL(ttl time.Duration) error {
	if ttl <= 0 || ttl > maxTTL {
		return fmt.Errorf("%w: TTL %v: want more than 0 and at most %v", driver.ErrInvalid, ttl, maxTTL)
	}
	return nil
}

// fail says what was tried. What failed because the backend was closed meanwhile is as
// unknown as any other failure, but says why.
func (b *Backend) fail(op, name string, err error) error {
	if b.closed.Load() && !driver.Final(err) {
		return fmt.Errorf("redislock: %s %s: closed meanwhile: %w", op, driver.Quote(name), err)
	}
	return fmt.Errorf("redislock: %s %s: %w", op, driver.Quote(name), err)
}

// millis is a TTL as Redis wants it.
func millis(d time.Duration) string { return strconv.FormatInt(inMillis(d), 10) }

// inMillis is d in milliseconds, rounded up.
func inMillis(d time.Duration) int64 {
	ms := int64(d / time.Millisecond)
	if d%time.Millisecond > 0 {
		ms++
	}
	return ms
}

// bit is a bool as scripts read it.
func bit(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

func itoa(n int) string { return strconv.Itoa(n) }
