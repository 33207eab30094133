package httpwire

import (
	"net/url"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
)

// Up returns d in milliseconds, rounded up: the TTL of a request.
func Up(d time.Duration) int64 {
	ms := int64(d / time.Millisecond)
	if d%time.Millisecond > 0 {
		ms++
	}
	return ms
}

// Down returns d in milliseconds, rounded down: the TTL of a grant.
func Down(d time.Duration) int64 { return int64(d / time.Millisecond) }

// Duration returns ms as a duration; one that is too long for that becomes the longest.
func Duration(ms int64) time.Duration {
	const most = int64(1<<63-1) / int64(time.Millisecond)
	return time.Duration(min(max(ms, -most), most)) * time.Millisecond
}

// SegmentOf escapes a name as one segment of a path. Dots are escaped too, since "." and ".." are not names
// of segments.
func SegmentOf(name string) string {
	return strings.ReplaceAll(url.PathEscape(name), ".", "%2E")
}

// FromCaps describes c.
func FromCaps(c driver.Caps, watch, inspect bool) Caps {
	return Caps{
		Modes: modes(c.Modes), Fence: c.Fence, Floor: c.Floor, Downgrade: c.Downgrade, Queueing: c.Queueing.String(),
		QueuedModes: modes(c.QueuedModes), Revocable: modes(c.Revocable),
		MinTTL: Up(c.MinTTL), MaxTTL: Down(c.MaxTTL), Poll: Up(c.Poll), Watch: watch, Inspect: inspect,
	}
}

// Driver returns c as the Caps of a backend called name.
func (c Caps) Driver(name string) driver.Caps {
	return driver.Caps{
		Name: name, Modes: driver.Modes(c.Modes...), Fence: c.Fence, Floor: c.Floor, Downgrade: c.Downgrade,
		Queueing: queueing(c.Queueing), QueuedModes: driver.Modes(c.QueuedModes...), Revocable: driver.Modes(c.Revocable...),
		MinTTL: Duration(c.MinTTL), MaxTTL: Duration(c.MaxTTL), Poll: Duration(c.Poll),
	}
}

func modes(s driver.ModeSet) []driver.Mode {
	var all []driver.Mode
	for m := driver.Exclusive; m <= driver.Counted; m++ {
		if s.Has(m) {
			all = append(all, m)
		}
	}
	return all
}

func queueing(s string) driver.Queueing {
	for q := driver.QueueNever; q <= driver.QueueAlways; q++ {
		if q.String() == s {
			return q
		}
	}
	return driver.QueueNever
}

// FromHold describes h.
func FromHold(h driver.Hold) Hold {
	return Hold{Name: h.Name, Owner: h.Owner, Mode: h.Mode, TTL: Up(h.TTL), Floor: h.Floor, Shorten: h.Shorten}
}

// Driver returns h for a backend.
func (h Hold) Driver() driver.Hold {
	if h.Mode == 0 {
		h.Mode = driver.Exclusive
	}
	return driver.Hold{Name: h.Name, Owner: h.Owner, Mode: h.Mode, TTL: Duration(h.TTL), Floor: h.Floor, Shorten: h.Shorten}
}

// FromRequest describes r.
func FromRequest(r driver.Request) Request {
	return Request{
		Hold: FromHold(r.Hold), Limit: r.Limit, Fixed: r.Fixed, Queue: r.Queue, Fences: r.Fences, Meta: r.Meta,
		Revocable: r.OnRevoke != nil,
	}
}

// Driver returns r for a backend, without its callbacks.
func (r Request) Driver() driver.Request {
	return driver.Request{
		Hold: r.Hold.Driver(), Limit: r.Limit, Fixed: r.Fixed, Queue: r.Queue, Fences: max(r.Fences, 1), Meta: r.Meta,
	}
}

// FromInfo describes i. It shows owners only if that is wanted.
func FromInfo(i driver.Info, owners bool) Info {
	info := Info{
		Name: i.Name, Mode: i.Mode, Limit: i.Limit, Holders: FromHolders(i.Holders, owners), Waiters: FromHolders(i.Waiters, owners),
	}
	if i.WaiterCount >= 0 {
		info.WaiterCount = &i.WaiterCount
	}
	return info
}

// Driver returns i as a backend's.
func (i Info) Driver() driver.Info {
	info := driver.Info{
		Name: i.Name, Mode: i.Mode, Limit: i.Limit, Holders: ToHolders(i.Holders), Waiters: ToHolders(i.Waiters), WaiterCount: -1,
	}
	if i.WaiterCount != nil {
		info.WaiterCount = *i.WaiterCount
	}
	return info
}

// FromHolders describes holders, with their owners if that is wanted.
func FromHolders(holders []driver.Holder, owners bool) []Holder {
	all := []Holder{}
	for _, h := range holders {
		w := Holder{Mode: h.Mode, Fence: h.Fence, Held: known(h.Held), Left: known(h.Left), Foreign: h.Foreign, Meta: h.Meta}
		if owners {
			w.Owner = h.Owner
		}
		all = append(all, w)
	}
	return all
}

// ToHolders returns holders as a backend's.
func ToHolders(holders []Holder) []driver.Holder {
	var all []driver.Holder
	for _, h := range holders {
		all = append(all, driver.Holder{
			Owner: h.Owner, Mode: h.Mode, Fence: h.Fence, Held: orUnknown(h.Held), Left: orUnknown(h.Left), Foreign: h.Foreign, Meta: h.Meta,
		})
	}
	return all
}

func known(d time.Duration) *int64 {
	if d < 0 {
		return nil
	}
	ms := Down(d)
	return &ms
}

func orUnknown(ms *int64) time.Duration {
	if ms == nil {
		return -1
	}
	return Duration(*ms)
}
