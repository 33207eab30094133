// Package exclusion judges who held locks when, as the programs that held them believed: from
// when Lock returned until the lease's context ended or Unlock was called. It is for tests
// that break networks and servers.
package exclusion

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock"
)

// Hold is what is written down: a *distlock.Lease, or what a test of a driver makes. It is
// held until its Context ends.
type Hold interface {
	Name() string
	Fence() uint64
	Context() context.Context
}

// Ledger is who holds what. Its methods may be called by any goroutine.
type Ledger struct {
	mu    sync.Mutex
	locks map[string]*lock
	wrong []string
	holds int
	lost  int
}

// lock is the entries of one lock.
type lock struct {
	held  map[Hold]string // with the holders' names
	fence uint64
	times int           // that it was taken
	taken time.Time     // when it was taken last
	idle  time.Duration // the longest time between two takings
}

// New is a ledger without entries.
func New() *Ledger { return &Ledger{locks: map[string]*lock{}} }

// Enter writes a hold down. Nobody else may hold now, and its fence must be the greatest
// so far. A lease that has already ended is none.
func (l *Ledger) Enter(who string, lease Hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lease.Context().Err() != nil {
		return
	}
	name := lease.Name()
	k := l.locks[name]
	if k == nil {
		k = &lock{held: map[Hold]string{}, taken: time.Now()}
		l.locks[name] = k
	}
	for other, whose := range k.held {
		if other.Context().Err() == nil {
			l.fault("%s got %s (fence %d) while %s had it (fence %d)", who, name, lease.Fence(), whose, other.Fence())
		}
	}
	if lease.Fence() <= k.fence {
		l.fault("%s got %s with fence %d after %d", who, name, lease.Fence(), k.fence)
	}
	now := time.Now()
	k.idle, k.taken = max(k.idle, now.Sub(k.taken)), now
	k.held[lease], k.fence = who, lease.Fence()
	k.times++
	l.holds++
}

// Beside is who else holds the same lock now: nobody is "".
func (l *Ledger) Beside(lease Hold) (who string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for other, whose := range l.locks[lease.Name()].entries() {
		if other != lease && other.Context().Err() == nil {
			return whose
		}
	}
	return ""
}

// entries are none for a lock that was never held.
func (k *lock) entries() map[Hold]string {
	if k == nil {
		return nil
	}
	return k.held
}

func (l *Ledger) fault(format string, args ...any) {
	l.wrong = append(l.wrong, fmt.Sprintf(format, args...))
}

// Leave writes down that a hold has ended, before Unlock is called or when it is lost.
func (l *Ledger) Leave(lease Hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.locks[lease.Name()]; k != nil {
		delete(k.held, lease)
	}
	if lease.Context().Err() != nil {
		l.lost++
	}
}

// Hold takes a lock, keeps it for a while, unless it is lost earlier, and gives it back.
func (l *Ledger) Hold(ctx context.Context, who string, m *distlock.Mutex, d time.Duration) error {
	lease, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	l.Enter(who, lease)
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-lease.Context().Done():
	}
	l.Leave(lease)
	lease.Unlock(context.WithoutCancel(ctx)) // who has lost it hears so again
	return nil
}

// Holds is how often a lock was held so far, and how many of these holds were lost.
func (l *Ledger) Holds() (holds, lost int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holds, l.lost
}

// Times is how often one lock was held so far.
func (l *Ledger) Times(name string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.locks[name]; k != nil {
		return k.times
	}
	return 0
}

// Holder is who has a lock now: nobody is "". The lease is nil for another kind of Hold.
func (l *Ledger) Holder(name string) (who string, lease *distlock.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.locks[name]; k != nil {
		for hold, who := range k.held {
			if hold.Context().Err() == nil {
				lease, _ = hold.(*distlock.Lease)
				return who, lease
			}
		}
	}
	return "", nil
}

// Faults are what must not have been.
func (l *Ledger) Faults() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.wrong)
}

// Fence is the last fence of a lock.
func (l *Ledger) Fence(name string) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.locks[name]; k != nil {
		return k.fence
	}
	return 0
}

// telling is the number of locks up to which it tells something to log each of them.
const telling = 20

// Judge fails the test for what must not have been, and for fewer holds than show
// anything.
func (l *Ledger) Judge(tb testing.TB, atLeast int) {
	tb.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.wrong {
		tb.Error(w)
	}
	if len(l.locks) <= telling {
		for name, k := range l.locks {
			tb.Logf("%s: nobody took it for %v at most", name, k.idle.Round(time.Millisecond))
		}
	}
	tb.Logf("%d holds, %d of them lost", l.holds, l.lost)
	if l.holds < atLeast {
		tb.Errorf("%d holds are too few to show anything, want %d", l.holds, atLeast)
	}
}
