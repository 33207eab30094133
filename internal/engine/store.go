package engine

import (
	"context"
	"strconv"
	"strings"

	"github.com/distlock/distlock/internal/claims"
)

// Store keeps one text for each name. Its methods are safe for concurrent use, and return when ctx ends. Times are µs since
// 1970 by the store's clock. An error is one of package driver, or means an unknown outcome.
type Store interface {
	// Read returns what is kept under each name, in their order.
	Read(ctx context.Context, names []string) ([]Seen, error)

	// Swap makes each change that Change.Apply would make, by itself, and wakes those that the change names. Several changes
	// have different names, and replace what they find ahead of anything, and wake nobody.
	Swap(ctx context.Context, changes []Change) []Outcome

	// Wake wakes waiters. One that is not woken comes late.
	Wake(ctx context.Context, list []Wake)

	// Names returns up to limit names after one, in a fixed order, those with the prefix first. Each that has a claim which
	// lasts is among them.
	Names(ctx context.Context, prefix, after string, limit int) ([]string, error)

	// Listen returns once heard is called for all that wakes the waiter from now on: with the end of an owner (EndOf), or with
	// "" if something may have been missed. It is called for each waiter, and so is stop. After an error the waiter polls.
	Listen(ctx context.Context, w Waiter, heard func(end string)) (stop func(), err error)

	// Close ends connections and goroutines. Later calls fail.
	Close() error
}

// Seen is what the store keeps under a name.
type Seen struct {
	Version int64 // 0: nothing is kept
	Text    string
	Void    int64
	Now     int64 // when that was so
}

// Waiter is an owner that waits at a backend with the address.
type Waiter struct {
	Name, Owner, Address string
	Queue                bool // it has a place, or will have one. Others are woken by a change that Frees, if at all

	// Follow tells the address of the claim that the owner waits for, after each attempt that was refused; "": it need not be
	// followed. It is for stores with Options.Address.
	Follow <-chan string
	// Poll lets the owner poll until its next attempt, if nothing can be heard from that address.
	Poll func()
}

// Wake is a waiter to be woken.
type Wake struct{ Name, Owner, Address string }

// EndOf returns the end of an owner, by which the owner is woken. A listener that hears only the end can't release the hold.
func EndOf(owner string) string { return owner[max(0, len(owner)-8):] }

// Outcome is the answer to a change.
type Outcome struct {
	Done  bool
	Other bool // an edit that is Done may have replaced another version than Change.Version
	Seen  Seen // what is there now. If the change is Done, it has a text with Other only, and if it is the only change of a Swap

	// Untold: it has no text with Other either. The store itself wakes those whom an edit that ends a claim lets in. Waits: there
	// are places then.
	Untold, Waits bool
	Err           error
}

// Change replaces the text of a name, or a part of it.
type Change struct {
	Name string

	// Version is what the caller believes to be there; 0: nothing, or not known.
	Version int64

	// Stamp, if not 0, must be greater than the Void of what is there.
	Stamp int64

	// Void is the new Void, if it is the greater one.
	Void int64

	// Before, if not 0, is when the change becomes void.
	Before int64

	// Since, if not 0, is the clock by which claims have ended that a Whole change takes away. A store whose reads another's clock may
	// answer makes no change at an earlier time.
	Since int64

	// Floor bounds the new version from below. It is also above the old one, and not below the clock.
	Floor int64

	// New replaces Old if what is ahead of that in the text is as Ahead says. An Old of "" is the end of the text. A tab in New
	// stands for the new version. Without claims that last, a text has no meaning any more from Until on.
	Ahead    Ahead
	Old, New string
	Until    int64

	Skip  bool   // not made, without an error, if another transaction keeps the text locked; otherwise the store may wait a little
	Free  bool   // a Whole change may also replace another version than Version, if no claim in that lasts
	Lazy  bool   // a crash of the store may take the change back
	Frees bool   // owners without a place may be let in
	Wake  []Wake // whom it lets in, as far as the caller knows
}

// Ahead says which part of a text a change replaces.
type Ahead int

const (
	// Whole changes replace all of the text. They need not find any.
	Whole Ahead = iota
	// Anything may be ahead.
	Anything
	// Readers may be ahead, or wait there.
	Readers
	// Nothing is ahead.
	Nothing
)

// NotReaders are what claims that are not a reader's begin with.
var NotReaders = []string{"\nx", "\nw", "\nc"}

// Kept is what a store keeps under a name.
type Kept struct {
	Version int64 // 0: nothing is kept
	Text    string
	Until   int64
	Void    int64 // what is not stamped with more comes too late
}

// Apply returns what is kept after the change, as of now. false: it is not made. It is the specification of Store.Swap.
func (c *Change) Apply(was Kept, now int64) (Kept, bool) {
	if c.Before > 0 && now >= c.Before || now < c.Since || c.Stamp > 0 && c.Stamp <= was.Void || was.Version >= claims.MaxNumber {
		return was, false
	}
	is := Kept{Version: max(was.Version+1, now, c.Floor), Void: max(was.Void, c.Void)}
	text := strings.ReplaceAll(c.New, "\t", strconv.FormatInt(is.Version, 10))
	if c.Ahead == Whole {
		if was.Version != c.Version && (!c.Free || was.Until > now) {
			return was, false
		}
		is.Text, is.Until = text, c.Until
		return is, true
	}
	at := len(was.Text)
	if c.Old != "" {
		at = strings.Index(was.Text, c.Old)
	}
	if was.Version == 0 || at < 0 || !c.Ahead.allows(was.Text[:at]) {
		return was, false
	}
	if is.Text = was.Text[:at] + text + was.Text[at+len(c.Old):]; is.Text != "" {
		is.Until = max(was.Until, c.Until)
	}
	return is, true
}

func (a Ahead) allows(text string) bool {
	switch a {
	case Nothing:
		return text == ""
	case Readers:
		for _, other := range NotReaders {
			if strings.Contains(text, other) {
				return false
			}
		}
	}
	return true
}
