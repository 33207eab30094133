package redislock

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

// A note is what is written down with a hold, for Inspect: "owner meta fence", where
// meta is in the form of a URL's query, and the fence as the counter gave it. A hold
// that was taken again has its first fence too, behind a comma. The fence is missing
// where the server runs no scripts.
//
// In the string layout the note is the lock's value; elsewhere it has a key of its own
// and a plus before it.

// noteStart is the part of a note that is known before the fence is.
func (l *lastMeta) noteStart(owner string, meta map[string]string) string {
	return owner + " " + l.encode(meta) + " "
}

// lastMeta remembers how the metadata of the last request are written: nearly always
// those of the next are the same map, which nobody changes.
type lastMeta struct{ atomic.Pointer[encodedMeta] }

type encodedMeta struct {
	meta map[string]string // kept, so that no other map can be in its place
	text string
}

func (l *lastMeta) encode(meta map[string]string) string {
	if e := l.Load(); e != nil && reflect.ValueOf(e.meta).Pointer() == reflect.ValueOf(meta).Pointer() {
		return e.text
	}
	text := encodeMeta(meta)
	l.Store(&encodedMeta{meta, text})
	return text
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

// readNote fills in what a note says; false if it is none.
func (l *layout) readNote(note string, now time.Duration, h *driver.Holder) bool {
	parts := strings.Split(strings.TrimPrefix(note, "+"), " ")
	if len(parts) != 3 || len(parts[0]) != ownerLen {
		return false
	}
	last, first, again := strings.Cut(parts[2], ",")
	if !again {
		first = last
	}
	fence := uint64(0)
	if last != "" { // who writes without scripts does not know it
		var err error
		if fence, err = l.fence(last); err != nil {
			return false
		}
	}
	h.Owner, h.Fence, h.Meta = parts[0], fence, readMeta(parts[1])
	// The counter is at least the server's clock, so a hold is at least as old as
	// that says; a counter that is ahead of the clock says nothing.
	if since, err := number64(first); err == nil && time.Duration(since)*time.Microsecond <= now {
		h.Held = now - time.Duration(since)*time.Microsecond
	}
	return true
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

// number64 is the number of a counter's answer: a stream's id, or a decimal number.
// Either way it follows the server's clock in microseconds.
func number64(id string) (uint64, error) {
	ms, seq, stream := strings.Cut(id, "-")
	n, err := strconv.ParseUint(ms, 10, 63)
	if err != nil || !stream {
		return n, err
	}
	s, err := strconv.ParseUint(seq, 10, 63)
	return n*perMilli + s, err
}

// perMilli is how many fences of the stream fall into a millisecond.
const perMilli = 1000

// fence is the first fence of the grant that the counter answered so.
func (l *layout) fence(id string) (uint64, error) {
	n, err := number64(id)
	return n * l.span, err
}

// floorID is what the counter must be raised to for later fences to exceed floor.
func (l *layout) floorID(floor uint64) string {
	n := floor / l.span
	if l.span == 1 {
		return strconv.FormatUint(n, 10)
	}
	return strconv.FormatUint(n/perMilli, 10) + "-" + strconv.FormatUint(n%perMilli, 10)
}
