package page

import (
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/server/internal/seen"
)

// lock is a lock as the page shows it.
type lock struct {
	Name    string
	Mode    driver.Mode
	Limit   int
	Held    int // by so many
	Holders []party
	Waiters []party
	Waiting int // those in the queue; negative: not known
}

// party is one that holds or waits. Its Owner stays in the server.
type party struct {
	owner   string
	Mode    driver.Mode
	Fence   uint64
	Since   time.Time // zero: not known
	Until   time.Time // zero: not known, or without end
	TTL     time.Duration
	Foreign bool
	Program string
	PID     string
	Host    string
	More    []pair
}

type pair struct{ Key, Value string }

// Since returns since when the lock has been held by the holder that has held it longest.
func (l lock) Since() (since time.Time) {
	for _, h := range l.Holders {
		if since.IsZero() || !h.Since.IsZero() && h.Since.Before(since) {
			since = h.Since
		}
	}
	return since
}

// seen returns the holders as a log keeps them.
func (l lock) seen() (all []seen.Holder) {
	for _, h := range l.Holders {
		who := seen.Describe(map[string]string{"program": h.Program, "pid": h.PID, "host": h.Host})
		all = append(all, seen.Holder{Fence: h.Fence, Mode: h.Mode, Who: who, Since: h.Since})
	}
	return all
}

// Late reports whether a hold should have been renewed by now: holders do it after a third of the TTL.
func (p party) Late() bool { return !p.Until.IsZero() && p.TTL > 0 && time.Until(p.Until) < p.TTL/3 }

// First returns the holder with the longest life: the lock may be free after that.
func (l lock) First() (first party) {
	for i, h := range l.Holders {
		if i == 0 || h.Until.After(first.Until) {
			first = h
		}
	}
	return first
}

// Others returns how many hold the lock beside First.
func (l lock) Others() int { return l.Held - 1 }

// Unshown returns how many hold the lock beside Holders.
func (l lock) Unshown() int { return l.Held - len(l.Holders) }

// Unnamed returns how many wait beside Waiters.
func (l lock) Unnamed() int { return max(l.Waiting-len(l.Waiters), 0) }
