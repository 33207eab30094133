package quorum

import (
	"errors"

	"github.com/distlock/distlock/driver"
)

// note remembers whether a member answered. Who was silent the last time is asked like
// all others, but what the others leave open is not worth waiting for it.
func (m *member) note(err error) {
	m.silent.Store(isUnknown(err))
}

// isUnknown reports whether err is no answer.
func isUnknown(err error) bool {
	return err != nil && !driver.Final(err) &&
		!errors.Is(err, driver.ErrHeld) && !errors.Is(err, driver.ErrLost) && !errors.Is(err, driver.ErrSkip)
}

// noteAll is note for a batch: one answer is enough.
func (m *member) noteAll(errs []error) {
	for _, err := range errs {
		if m.note(err); !m.silent.Load() {
			return
		}
	}
}

// worthWaiting reports whether to wait for the members whose answer is pending: for
// those that answered the last time; for the others only if those are no majority.
func (b *Backend) worthWaiting(pending func(member int) bool) bool {
	waiting, answering := false, 0
	for i, m := range b.members {
		silent := m.silent.Load()
		if !silent {
			answering++
		}
		if pending(i) {
			if !silent {
				return true
			}
			waiting = true
		}
	}
	return waiting && answering < b.majority
}

// set has members.
type set []bool

func (s set) has(member int) bool { return s[member] }

func (b *Backend) everyone() set {
	s := make(set, len(b.members))
	for i := range s {
		s[i] = true
	}
	return s
}
