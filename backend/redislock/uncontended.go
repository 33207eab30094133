package redislock

import (
	"context"
	"errors"
	"hash/maphash"
	"math"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/layouts"
	"github.com/distlock/distlock/backend/redislock/internal/plain"
	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
)

// uncontended is scripted, but takes and releases free locks of the layout "string", exclusive ones and writers', by plain
// commands. Scripts do all else: they find what these have left.
type uncontended struct {
	*scripted
	commands  plain.Commands
	contended contendedNames
	unfenced  unfencedHolds
	delete    atomic.Uint32 // a plain.DeleteCommand
}

func newUncontended(b *Backend) *uncontended {
	return &uncontended{
		scripted:  newScripted(b),
		commands:  plain.Commands{Client: b.client, PubSub: b.pubsub, Layout: b.layout},
		contended: contendedNames{began: time.Now()},
	}
}

// Acquire makes one attempt. It takes a free lock in one round trip, and so it does for a name that was contended lately. The
// first attempt runs a script: a user who may not do that is told at once, and not by a renewal. While the slot moves, plain commands
// do what needs no key but the lock's.
func (s *uncontended) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	var g driver.Grant
	var apart error
	if !r.Mode.Alone() || !s.acquires.Load() || s.contended.has(r.Name) {
		if g, apart = s.acquireContended(ctx, r); !r.Mode.Alone() || !redisconn.Apart(apart) {
			return g, apart
		}
	}
	taken, err := s.commands.Take(ctx, r)
	switch {
	case err != nil && taken.Outcome == plain.Held:
		return driver.Grant{}, err
	case err != nil:
		return driver.Grant{TTL: r.TTL}, err
	case taken.Outcome == plain.Granted:
		if s.delete.Load() != uint32(plain.DeleteByScript) {
			s.unfenced.add(r.Hold)
		}
		return s.layout.Grant(r, taken.ID)
	case taken.Outcome == plain.Queued:
		if err := s.scripted.Release(ctx, r.Hold); err != nil && !errors.Is(err, driver.ErrLost) {
			return driver.Grant{TTL: r.TTL}, err
		}
	}
	if apart == nil {
		g, apart = s.acquireContended(ctx, r)
	}
	if taken.Outcome == plain.NoFence && apart != nil && !errors.Is(apart, driver.ErrHeld) {
		g.TTL = r.TTL // whatever the script says, Take has taken it
	}
	holder := redisconn.Text(taken.Value.Reply)
	_, _, shared := layouts.Shared(holder)
	switch own := plain.OwnedBy(holder, r.Owner); {
	case !redisconn.Apart(apart), taken.Outcome != plain.Held && taken.Outcome != plain.NoFence, shared:
	case !own:
		return driver.Grant{}, s.commands.Refusal(ctx, r, taken.Value)
	default:
		id, err := s.commands.Again(ctx, r, func(h driver.Hold) error { return s.Renew(ctx, []driver.Hold{h})[0] })
		if err == nil && layouts.InMillisecond(id) {
			return s.layout.Grant(r, id)
		}
	}
	return g, apart
}

// acquireContended runs the script that acquires, and remembers a name that is refused: until the place in the queue that the
// attempt may have got ends.
func (s *uncontended) acquireContended(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := s.scripted.Acquire(ctx, r)
	if err == nil && !s.acquires.Load() {
		s.acquires.Store(true)
	}
	if errors.Is(err, driver.ErrHeld) {
		s.contended.add(r.Name, rememberContended+r.TTL)
	}
	return g, err
}

// Renew runs the script that renews, which writes the fences.
func (s *uncontended) Renew(ctx context.Context, holds []driver.Hold) []error {
	for _, h := range holds {
		s.unfenced.drop(h.Owner)
	}
	return s.scripted.Renew(ctx, holds)
}

// Release ends a hold. Where the server has a command for that, one that plain commands took, and that was not renewed, is deleted without
// a script.
func (s *uncontended) Release(ctx context.Context, h driver.Hold) error {
	given, by := false, plain.DeleteByScript
	ttl, unfenced := s.unfenced.drop(h.Owner)
	if unfenced && h.Mode.Alone() {
		by, h.TTL = s.deleteBy(ctx), ttl
	}
	if by != plain.DeleteByScript {
		var queued bool
		var err error
		if given, queued, err = s.commands.Give(ctx, h, by); err != nil {
			return redisconn.MarkUnsent(err)
		}
		if given && !queued {
			return nil
		}
	}
	err := s.scripted.Release(ctx, h) // notifies the first in the queue, even if nothing is held any more
	if err == nil {
		return nil
	}
	if h.Mode.Alone() && redisconn.Apart(err) {
		err = s.releaseApart(ctx, h, err)
	}
	switch {
	case given && errors.Is(err, driver.ErrLost):
		return nil
	case given && err != nil:
		return errors.New(err.Error()) // the deletion was sent, though the script may not have been
	}
	return err
}

// releaseApart ends a hold while its slot moves. If it is waited for, those in the queue are notified when the release is repeated behind
// the move: until then it returns apart, the error of the script that does it.
func (s *uncontended) releaseApart(ctx context.Context, h driver.Hold, apart error) error {
	key := s.layout.Prefix + h.Name
	reply, err := s.run(ctx, releaseApart, []string{key}, []string{h.Owner})
	if err != nil {
		return redisconn.MarkUnsent(err)
	}
	queue, err := s.client.Do(ctx, key, []string{"EXISTS", layouts.QueueKey(key)})
	ended := reply == int64(1)
	switch {
	case err == nil && queue == int64(0) && (ended || reply == int64(0)):
		_, _ = s.client.Do(ctx, key, s.pubsub.Publish(s.layout.Mode(h.Mode).Channel(key), "0")) // for those without a place
		if !ended {
			return driver.ErrLost
		}
		return nil
	case ended:
		return errors.New(apart.Error()) // not unsent any more
	}
	return apart
}

// deleteBy returns how a lock is deleted. It asks the server the first time.
func (s *uncontended) deleteBy(ctx context.Context) plain.DeleteCommand {
	by := plain.DeleteCommand(s.delete.Load())
	if by != plain.DeleteUnknown {
		return by
	}
	by, err := plain.FindDelete(ctx, s.client)
	if err != nil {
		return plain.DeleteByScript // this time
	}
	s.delete.Store(uint32(by))
	return by
}

// rememberContended is for how long a refused name is remembered at least.
const rememberContended = time.Second

var seed = maphash.MakeSeed()

// contendedNames remembers names for some time, by their hash: a name may be taken for another.
type contendedNames struct {
	began time.Time
	until [1024]atomic.Int64 // since began
}

func (c *contendedNames) slot(name string) *atomic.Int64 {
	return &c.until[maphash.String(seed, name)%uint64(len(c.until))]
}

// has reports whether a name is remembered.
func (c *contendedNames) has(name string) bool {
	until := c.slot(name).Load()
	return until > 0 && int64(time.Since(c.began)) < until
}

// add remembers a name for at least d.
func (c *contendedNames) add(name string, d time.Duration) {
	slot, until := c.slot(name), int64(time.Since(c.began)+d)
	for was := slot.Load(); was < until && !slot.CompareAndSwap(was, until); was = slot.Load() {
	}
}

// unfencedHolds remembers holds whose value has their TTL in place of the fence: those that plain commands took, and that no script
// has renewed. A later one may take the place of another, which is forgotten.
type unfencedHolds [4096]atomic.Uint64 // half of the Owner's hash, and the TTL in ms

func (u *unfencedHolds) slot(owner string) (*atomic.Uint64, uint32) {
	sum := maphash.String(seed, owner)
	return &u[sum%uint64(len(u))], uint32(sum >> 32)
}

func (u *unfencedHolds) add(h driver.Hold) {
	if ms := layouts.CeilMillis(h.TTL); ms <= math.MaxUint32 {
		slot, sum := u.slot(h.Owner)
		slot.Store(uint64(sum)<<32 | uint64(ms))
	}
}

// drop forgets a hold, and returns its TTL if it was remembered.
func (u *unfencedHolds) drop(owner string) (time.Duration, bool) {
	slot, sum := u.slot(owner)
	was := slot.Load()
	if was == 0 || uint32(was>>32) != sum || !slot.CompareAndSwap(was, 0) {
		return 0, false
	}
	return time.Duration(uint32(was)) * time.Millisecond, true
}
