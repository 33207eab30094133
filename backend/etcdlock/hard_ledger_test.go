package etcdlock_test

import (
	"fmt"
	"sync"

	"github.com/distlock/distlock"
)

// ledger has who holds what, as the programs believe: from when Lock returned until the
// lease's context ended or Unlock was called.
type ledger struct {
	mu    sync.Mutex
	held  map[string]map[*distlock.Lease]string // by lock, with the holder's name
	fence map[string]uint64
	holds map[string]int
	wrong []string
}

func newLedger() *ledger {
	return &ledger{held: map[string]map[*distlock.Lease]string{}, fence: map[string]uint64{}, holds: map[string]int{}}
}

// enter writes a hold down, and that nobody else may hold. A lease that has ended by now
// is none.
func (l *ledger) enter(who string, lease *distlock.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	name := lease.Name()
	if lease.Context().Err() != nil {
		return
	}
	for other, whose := range l.held[name] {
		if other.Context().Err() == nil {
			l.fault("%s has %s with fence %d while %s has it with %d", who, name, lease.Fence(), whose, other.Fence())
		}
	}
	if lease.Fence() <= l.fence[name] {
		l.fault("%s has %s with fence %d after %d", who, name, lease.Fence(), l.fence[name])
	}
	if l.held[name] == nil {
		l.held[name] = map[*distlock.Lease]string{}
	}
	l.held[name][lease], l.fence[name] = who, lease.Fence()
	l.holds[name]++
}

func (l *ledger) fault(format string, args ...any) {
	l.wrong = append(l.wrong, fmt.Sprintf(format, args...))
}

// leave is called before Unlock.
func (l *ledger) leave(lease *distlock.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held[lease.Name()], lease)
}

// count is how often a lock was taken.
func (l *ledger) count(name string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holds[name]
}

func (l *ledger) total() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, holds := range l.holds {
		n += holds
	}
	return n
}
