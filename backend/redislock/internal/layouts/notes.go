package layouts

import (
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
)

// A note is written with a hold, for Inspect: "owner meta fence", where meta is in the
// form of a URL's query, and the fence as the counter gave it. A hold that was acquired again has
// its first fence too, behind a comma. The fence is missing without scripts.
//
// In the layout "string" the note of an exclusive lock is its value. Elsewhere it has a key of its own, and a
// plus before it.

// Notes writes notes. It keeps how the metadata of the last request are written: nearly always
// the next request has the same map, which no caller changes.
type Notes struct{ last atomic.Pointer[encodedMeta] }

type encodedMeta struct {
	meta map[string]string // kept, so that no other map can be in its place
	text string
}

// Start returns the part of a note that is known before the fence is.
func (n *Notes) Start(owner string, meta map[string]string) string {
	last := n.last.Load()
	if last == nil || reflect.ValueOf(last.meta).Pointer() != reflect.ValueOf(meta).Pointer() {
		last = &encodedMeta{meta, encodeMeta(meta)}
		n.last.Store(last)
	}
	return owner + " " + last.text + " "
}

func encodeMeta(meta map[string]string) string {
	var b strings.Builder
	for i, key := range slices.Sorted(maps.Keys(meta)) {
		if i > 0 {
			b.WriteByte('&')
		}
		b.WriteString(url.QueryEscape(key))
		b.WriteByte('=')
		b.WriteString(url.QueryEscape(meta[key]))
	}
	return b.String()
}

func readMeta(query string) map[string]string {
	values, err := url.ParseQuery(query)
	if err != nil || len(values) == 0 {
		return nil
	}
	meta := make(map[string]string, len(values))
	for key := range values {
		meta[key] = values.Get(key)
	}
	return meta
}

// readNote fills in h from a note, and reports whether it is one. now is the time since 1970, by the server's clock.
func (l *Layout) readNote(note string, now time.Duration, h *driver.Holder) bool {
	parts := strings.Split(strings.TrimPrefix(note, "+"), " ")
	if len(parts) != 3 || len(parts[0]) != OwnerLen {
		return false
	}
	last, first, again := strings.Cut(parts[2], ",")
	if !again {
		first = last
	}
	fence := uint64(0)
	if last != "" { // clients without scripts do not know it
		var err error
		if fence, err = l.Fence(last); err != nil {
			return false
		}
	}
	h.Owner, h.Fence, h.Meta = parts[0], fence, readMeta(parts[1])
	// The counter is at least the server's clock, so a hold is at least as old as
	// that says; a counter that is ahead of the clock says nothing.
	if since, err := number(first); err == nil && time.Duration(since)*time.Microsecond <= now {
		h.Held = now - time.Duration(since)*time.Microsecond
	}
	return true
}

// perMilli is how many fences of the stream fall into a millisecond.
const perMilli = 1000

// number reads a counter's answer: a stream's id, or a decimal number. Either follows the
// server's clock in microseconds.
func number(id string) (uint64, error) {
	ms, seq, stream := strings.Cut(id, "-")
	n, err := strconv.ParseUint(ms, 10, 63)
	if err != nil || !stream {
		return n, err
	}
	s, err := strconv.ParseUint(seq, 10, 63)
	return n*perMilli + s, err
}

// Fence returns the first fence of a grant with this answer of the counter.
func (l *Layout) Fence(id string) (uint64, error) {
	n, err := number(id)
	return n * l.Span, err
}

// Grant returns what a request got with this answer of the counter.
func (l *Layout) Grant(r driver.Request, id string) (driver.Grant, error) {
	fence, err := l.Fence(id)
	return driver.Grant{Fence: fence, Fences: min(max(r.Fences, 1), l.modes[r.Mode].Span), TTL: r.TTL}, err
}

// FloorID returns the id to which the counter must be raised for later fences to exceed floor.
func (l *Layout) FloorID(floor uint64) string {
	n := floor / l.Span
	if l.Redisson {
		return strconv.FormatUint(n, 10)
	}
	return strconv.FormatUint(n/perMilli, 10) + "-" + strconv.FormatUint(n%perMilli, 10)
}

// Millis returns a TTL as Redis wants it.
func Millis(d time.Duration) string { return strconv.FormatInt(CeilMillis(d), 10) }

// CeilMillis returns d, which is positive, in milliseconds, rounded up.
func CeilMillis(d time.Duration) int64 { return int64((d-1)/time.Millisecond) + 1 }

// Bit is a bool as scripts read it.
func Bit(b bool) string {
	if b {
		return "1"
	}
	return "0"
}
