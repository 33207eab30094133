package cli

import (
	"encoding/json"
	"io"
	"maps"
	"strconv"
	"time"

	"github.com/distlock/distlock"
)

// lockJSON is what ls and show say of a lock with --json. Times without a unit in
// their name are RFC 3339, by this machine's clock; null is "not known".
type lockJSON struct {
	Name        string       `json:"name"`
	Mode        string       `json:"mode"`            // exclusive, write, read, counted; free
	Limit       int          `json:"limit,omitempty"` // permits of a semaphore
	Holders     []holderJSON `json:"holders"`
	Waiters     []holderJSON `json:"waiters"`      // in their order, as far as the server knows them
	WaiterCount *int         `json:"waiter_count"` // at least those
}

// holderJSON is somebody who holds or waits.
type holderJSON struct {
	Mode    string            `json:"mode"`
	Fence   *string           `json:"fence"` // in decimal: JSON's numbers lose digits above 2^53
	Owner   string            `json:"owner"`
	Since   *string           `json:"since"`
	HeldMS  *int64            `json:"held_ms"`
	LeftMS  *int64            `json:"left_ms"` // until it ends if it is not renewed
	Host    string            `json:"host"`
	PID     *int              `json:"pid"`
	Program string            `json:"program"`
	Foreign bool              `json:"foreign,omitempty"` // another library's lock, or other data
	Meta    map[string]string `json:"meta"`              // what else the holder tells
}

func toJSON(info distlock.Info, now time.Time) lockJSON {
	l := lockJSON{Name: info.Name, Mode: modeOf(info), Limit: info.Limit, Holders: []holderJSON{}, Waiters: []holderJSON{}}
	for _, h := range info.Holders {
		l.Holders = append(l.Holders, holderToJSON(h, now))
	}
	for _, h := range info.Waiters {
		l.Waiters = append(l.Waiters, holderToJSON(h, now))
	}
	if info.WaiterCount >= 0 {
		l.WaiterCount = &info.WaiterCount
	}
	return l
}

func holderToJSON(h distlock.Holder, now time.Time) holderJSON {
	j := holderJSON{
		Mode: h.Mode.String(), Owner: h.Owner, HeldMS: millis(h.Held), LeftMS: millis(h.Left),
		Foreign: h.Foreign, Host: h.Meta["host"], Program: h.Meta["program"], Meta: otherMeta(h),
	}
	if h.Fence != 0 {
		n := fence(h)
		j.Fence = &n
	}
	if h.Held >= 0 {
		since := now.Add(-h.Held).UTC().Format(stamp)
		j.Since = &since
	}
	if pid, err := strconv.Atoi(h.Meta["pid"]); err == nil {
		j.PID = &pid
	}
	return j
}

// otherMeta is what a holder tells beyond what every holder does.
func otherMeta(h distlock.Holder) map[string]string {
	meta := map[string]string{}
	maps.Copy(meta, h.Meta)
	for _, key := range []string{"host", "pid", "program"} {
		delete(meta, key)
	}
	return meta
}

func millis(d time.Duration) *int64 {
	if d < 0 {
		return nil
	}
	ms := d.Milliseconds()
	return &ms
}

// modeOf is how a lock is held in a word.
func modeOf(info distlock.Info) string {
	if len(info.Holders) == 0 {
		return "free"
	}
	return info.Mode.String()
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
