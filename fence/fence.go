// Package fence checks fencing tokens where the protected data is, so that a holder that was
// paused for longer than its lease can do no harm when it continues.
//
//	var guard fence.Memory
//
//	leave, err := guard.Enter(ctx, "stock:7", distlock.Fence(ctx))
//	if err != nil {
//		return err // matches fence.ErrStale if another client has held the lock since
//	}
//	defer leave()
//	// read, compute, write
//
// Packages fencesql, fenceredis and fencehttp do the same in a database, in Redis and in an HTTP
// server.
//
// # The rule
//
// A guard remembers the greatest fence that was presented for a resource, and refuses smaller ones.
// To be protected, present the fence with or before the first read, and again with the write. A
// fence with the writes only is too late: the paused holder's write may arrive after its successor
// has read and before it writes. Then it is accepted and overwritten: a lost update.
//
// The guard must live as long as the data. A guard that forgets a fence accepts what it had refused.
// So keep it where the data is: in one database, or in one process.
//
// A guard relies on increasing fences. If the lock's coordinator goes back to smaller ones (another
// coordinator, or one that lost its counter), the guard refuses the rightful holder until the fences
// have caught up. That is safe, but blocks. If no holder with an old fence is left, the guard's
// stored fence may be deleted.
//
// # Which fences
//
// One resource belongs to one lock. Fences of different locks are not comparable: under several
// locks, give each resource the fence of its own lock (distlock.FenceOf). Guards are for exclusive
// holders: of a Mutex, or of an RWMutex in write mode. Permit holders and readers hold at the same
// time under different fences, and a guard would refuse all but the latest.
//
// An equal fence is the same holder again and is accepted.
//
// # Why it does not import distlock
//
// A fence is a number. The service that keeps the data needs no lock and no coordinator. So this
// package and those below it take a uint64, and import neither distlock nor a database client. The
// holder of the lock passes distlock.Fence.
package fence

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"
)

// ErrStale is matched by every refusal of a fence that is smaller than one presented before. The
// lease of that fence has ended: acquire the lock again and start with reading. Repeating the call
// does not help.
var ErrStale = errors.New("stale fence")

// ErrInvalid is matched by errors about invalid arguments and tables: fence 0, no resource, a table
// with other columns. Nothing was accepted.
var ErrInvalid = errors.New("invalid")

// StaleError is a refusal with its details. It matches ErrStale.
type StaleError struct {
	Resource string
	Fence    uint64 // as presented
	Seen     uint64 // the greatest one presented before; 0: unknown
}

// Error names the resource and both fences.
func (e *StaleError) Error() string {
	if e.Seen == 0 {
		return fmt.Sprintf("%v: %d for %q; another client has held the lock since", ErrStale, e.Fence, e.Resource)
	}
	return fmt.Sprintf("%v: %d for %q after %d; another client has held the lock since", ErrStale, e.Fence, e.Resource, e.Seen)
}

// Unwrap makes errors.Is(err, ErrStale) true.
func (e *StaleError) Unwrap() error { return ErrStale }

// Guard accepts the greatest fence of a resource and refuses smaller ones. Memory is a Guard.
type Guard interface {
	// Enter presents a fence for a resource. From then on smaller ones are refused. It returns once
	// no call is inside under a smaller fence, or ctx has ended. The caller calls leave when it is
	// done; calling it again has no effect.
	//
	// A refusal matches ErrStale; fence 0 and an empty resource are ErrInvalid.
	Enter(ctx context.Context, resource string, fence uint64) (leave func(), err error)
}

// MaxResource is the maximum length of a resource's name in bytes.
const MaxResource = 512

// Check applies the rule, for guards of your own. It returns a *StaleError if fence is smaller than
// seen, the greatest one presented before (0: none), and ErrInvalid where Valid does. Comparing,
// remembering and the guarded access must be one atomic step.
func Check(resource string, fence, seen uint64) error {
	if err := Valid(resource, fence); err != nil {
		return err
	}
	if fence < seen {
		return &StaleError{Resource: resource, Fence: fence, Seen: seen}
	}
	return nil
}

// Valid returns ErrInvalid for fence 0 and for a resource whose name is empty, longer than
// MaxResource or not plain text (UTF-8 without NUL).
func Valid(resource string, fence uint64) error {
	switch {
	case resource == "":
		return fmt.Errorf("%w resource: its name is empty", ErrInvalid)
	case len(resource) > MaxResource:
		return fmt.Errorf("%w resource: its name has %d bytes, more than %d", ErrInvalid, len(resource), MaxResource)
	case !utf8.ValidString(resource) || strings.Contains(resource, "\x00"):
		return fmt.Errorf("%w resource %q: want UTF-8 without NUL", ErrInvalid, resource)
	case fence == 0:
		return fmt.Errorf("%w fence 0 for %q: is the context derived from a lease, and does the backend have fences?", ErrInvalid, resource)
	}
	return nil
}

// Memory guards data in the memory of one process. The zero value is ready to use. It is safe for
// concurrent use.
//
// Calls with the same fence are inside together, since they work for the same holder. A call with a
// greater fence waits until they have left, and meanwhile calls with smaller fences are refused.
//
// It keeps the name and the fence of every resource that it has seen, about 100 bytes each:
// forgetting one would accept any fence again. Use it for data that ends with the process. Data
// elsewhere needs a guard there.
type Memory struct {
	mu    sync.Mutex
	rooms map[string]*room
}

// room is one resource.
type room struct {
	seen   uint64        // the greatest fence that was presented
	under  uint64        // the fence of those inside
	inside int           // number of calls inside
	empty  chan struct{} // closed when the last one leaves; nil while no call waits
}

// Enter implements Guard. If ctx ends first Enter returns its error, and smaller fences are still
// refused. Don't enter a resource under another fence while inside: that would deadlock.
func (m *Memory) Enter(ctx context.Context, resource string, fence uint64) (leave func(), err error) {
	if err := Valid(resource, fence); err != nil {
		return nil, err
	}
	for {
		r, wait, err := m.try(resource, fence)
		if err != nil {
			return nil, err
		}
		if wait == nil {
			return sync.OnceFunc(func() { m.exitRoom(r) }), nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			err := ctx.Err()
			if cause := context.Cause(ctx); cause != err {
				err = fmt.Errorf("%w (%v)", err, cause)
			}
			return nil, fmt.Errorf("fence: %q is still in use under a smaller fence: %w", resource, err)
		}
	}
}

// Do calls f inside and returns its error.
func (m *Memory) Do(ctx context.Context, resource string, fence uint64, f func() error) error {
	leave, err := m.Enter(ctx, resource, fence)
	if err != nil {
		return err
	}
	defer leave()
	return f()
}

// Forget removes a resource that no longer exists. It returns false, and does nothing, while a call
// is inside.
func (m *Memory) Forget(resource string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.rooms[resource]; r != nil && r.inside > 0 {
		return false
	}
	delete(m.rooms, resource)
	return true
}

// try accepts a fence, refuses it, or returns a channel to wait for.
func (m *Memory) try(resource string, fence uint64) (*room, <-chan struct{}, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.room(resource)
	if err := Check(resource, fence, r.seen); err != nil {
		return nil, nil, err
	}
	r.seen = fence
	if r.inside > 0 && r.under != fence {
		if r.empty == nil {
			r.empty = make(chan struct{})
		}
		return nil, r.empty, nil
	}
	r.under = fence
	r.inside++
	return r, nil, nil
}

func (m *Memory) room(resource string) *room {
	if m.rooms == nil {
		m.rooms = map[string]*room{}
	}
	r := m.rooms[resource]
	if r == nil {
		r = &room{}
		m.rooms[resource] = r
	}
	return r
}

func (m *Memory) exitRoom(r *room) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r.inside--
	if r.inside == 0 && r.empty != nil {
		close(r.empty)
		r.empty = nil
	}
}
