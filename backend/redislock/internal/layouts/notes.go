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
// its first fence too, behind a comma.
//
// In the layout "string" the note of an exclusive lock is its value, and so is a writer's, with a w at its end. It is written
// before the fence is drawn, and has the TTL in ms behind a minus in its place; the first renewal by a script writes the
// fence. The notes of readers and permits are in a hash. In the layout "redisson" a note has a key of its own, and a plus
// before it.

// Notes writes notes. It keeps how the metadata of the last request are written: nearly always
// the next request has the same map, which no caller changes.
type Notes struct{ last atomic.Pointer[encodedMeta] }

type encodedMeta struct {
	meta map[string]string // kept, so that no other map can be in its place
	text string
}

// Start returns the part of a note that is known before the fence is.
func (n *Notes) Start(owner string, meta map[string]string) string {
	return owner + " " + n.encoded(meta) + " "
}

// Unfenced returns the note of a hold whose fence is not known yet.
func (n *Notes) Unfenced(h driver.Hold, meta map[string]string) string {
	return unfenced(h, n.encoded(meta))
}

// LastUnfenced returns what Unfenced returned for a hold, if no attempt with other metadata was made since.
func (n *Notes) LastUnfenced(h driver.Hold) string {
	text := ""
	if last := n.last.Load(); last != nil {
		text = last.text
	}
	return unfenced(h, text)
}

func unfenced(h driver.Hold, meta string) string {
	return h.Owner + " " + meta + " -" + Millis(h.TTL) + letter(h.Mode == driver.Write)
}

// letter returns what stands at the end of a writer's note.
func letter(write bool) string {
	if write {
		return "w"
	}
	return ""
}

// Mark returns what the entry of an Owner has.
func Mark(owner string) string { return owner[max(0, len(owner)-8):] }

// DrawnSince returns from which id on the fence counter may have what an unfenced value lacks; empty if it lacks nothing. The
// value has the rest of its TTL in ms, left, at the server's time now. scripts/drawn.lua has the same rule.
func DrawnSince(value string, now time.Duration, left int64) string {
	_, ttl, unfenced := strings.Cut(value[min(len(value), OwnerLen+1):], " -")
	ms, err := strconv.ParseInt(strings.TrimSuffix(ttl, "w"), 10, 64)
	if !unfenced || err != nil {
		return ""
	}
	return strconv.FormatInt(max(0, now.Milliseconds()+left-ms-2), 10)
}

// Fenced returns a note with the counter's answer, if that is known and the note lacks it.
func Fenced(note, id string) (_ string, ok bool) {
	end := strings.LastIndexByte(note, ' ') + 1
	if id == "" || !strings.HasPrefix(note[end:], "-") {
		return "", false
	}
	return note[:end] + id + letter(strings.HasSuffix(note, "w")), true
}

// Later returns an unfenced note whose hold lives for d ms longer, and began when it did.
func Later(note string, d int64) (_ string, ok bool) {
	end := strings.LastIndexByte(note, ' ') + 1
	ttl, write := strings.CutSuffix(note[end:], "w")
	ms, err := strconv.ParseInt(ttl, 10, 64)
	if err != nil || ms >= 0 {
		return "", false
	}
	return note[:end] + strconv.FormatInt(ms-d, 10) + letter(write), true
}

func (n *Notes) encoded(meta map[string]string) string {
	last := n.last.Load()
	if last == nil || reflect.ValueOf(last.meta).Pointer() != reflect.ValueOf(meta).Pointer() {
		last = &encodedMeta{meta, encodeMeta(meta)}
		n.last.Store(last)
	}
	return last.text
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
	if ttl, unfenced := strings.CutPrefix(parts[2], "-"); unfenced {
		ms, err := strconv.ParseInt(ttl, 10, 64)
		h.Owner, h.Meta = parts[0], readMeta(parts[1])
		if life := LifeLeft(ms); h.Left >= 0 && life >= h.Left {
			h.Held = life - h.Left // it was not renewed yet
		}
		return err == nil
	}
	last, first, again := strings.Cut(parts[2], ",")
	if !again {
		first = last
	}
	fence, err := l.Fence(last, parts[0])
	if err != nil {
		return false
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

// InMillisecond reports whether an id of the stream is one of the thousand that its millisecond has.
func InMillisecond(id string) bool {
	_, seq, stream := strings.Cut(id, "-")
	return stream && len(seq) <= 3
}

// Fence returns the first fence of owner's grant with this answer of the counter.
//
// Two masters of a split brain may give the same answer. So the fences of the layout "string" begin at a place that the
// Owner decides on, among those that the number stands for.
func (l *Layout) Fence(id, owner string) (uint64, error) {
	n, err := number(id)
	return n*l.Span + uint64(hash(owner))%(l.Span-l.modes[driver.Exclusive].Span+1), err
}

// hash is FNV-1a: the same in all processes.
func hash(s string) uint32 {
	h := uint32(2166136261)
	for i := range len(s) {
		h = (h ^ uint32(s[i])) * 16777619
	}
	return h
}

// Grant returns what a request got with this answer of the counter.
func (l *Layout) Grant(r driver.Request, id string) (driver.Grant, error) {
	fence, err := l.Fence(id, r.Owner)
	return driver.Grant{Fence: fence, Fences: min(max(r.Fences, 1), l.modes[r.Mode].Span), TTL: r.TTL}, err
}

// ID returns the counter's answer for a grant that has this fence; empty for none.
func (l *Layout) ID(fence uint64) string {
	if fence == 0 {
		return ""
	}
	return l.FloorID(fence)
}

// FloorID returns the id to which the counter must be raised for later fences to exceed floor.
func (l *Layout) FloorID(floor uint64) string {
	n := floor / l.Span
	if l.Redisson {
		return strconv.FormatUint(n, 10)
	}
	var id [2*20 + 1]byte
	return string(strconv.AppendUint(append(strconv.AppendUint(id[:0], n/perMilli, 10), '-'), n%perMilli, 10))
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
