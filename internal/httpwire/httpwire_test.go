package httpwire

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"reflect"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// through encodes v as JSON and decodes it.
func through[T any](t *testing.T, v T) T {
	t.Helper()
	text := must.Get(json.Marshal(v))(t)
	var out T
	must.OK(t, json.Unmarshal(text, &out))
	return out
}

func TestMessagesKeepAll(t *testing.T) {
	t.Parallel()
	hold := driver.Hold{Name: "a/ü\n", Owner: "o", Mode: driver.Write, TTL: 30 * time.Second, Floor: 1<<63 - 1}
	request := driver.Request{Hold: hold, Limit: 3, Fixed: true, Queue: true, Fences: 1 << 60, Meta: map[string]string{"pid": "7"}}
	if got := through(t, FromRequest(request)).Driver(); !reflect.DeepEqual(got, request) {
		t.Errorf("request: got %+v, want %+v", got, request)
	}
	info := driver.Info{
		Name: "a", Mode: driver.Read, Limit: 2, WaiterCount: -1,
		Holders: []driver.Holder{{Owner: "o", Mode: driver.Read, Fence: 1<<63 - 1, Held: -1, Left: time.Second, Foreign: true}},
		Waiters: []driver.Holder{{Owner: "p", Mode: driver.Write, Held: 2 * time.Second, Left: -1}},
	}
	if got := through(t, FromInfo(info, true)).Driver(); !reflect.DeepEqual(got, info) {
		t.Errorf("info: got %+v, want %+v", got, info)
	}
	if got := through(t, FromInfo(info, false)).Driver(); got.Holders[0].Owner != "" || got.Waiters[0].Owner != "" {
		t.Errorf("owners are shown: %+v", got)
	}
	caps := driver.Caps{
		Name: "x", Modes: driver.AllModes, Fence: true, Floor: true, Downgrade: true, Observed: true, Queueing: driver.QueueOnRequest,
		QueuedModes: driver.Modes(driver.Read), Revocable: driver.Modes(driver.Counted), MinTTL: time.Second, MaxTTL: time.Hour, Poll: time.Minute,
	}
	expect.Equal(t, through(t, FromCaps(caps, true, true)).Driver("x"), caps, "caps")
}

// An error that passes through a server states the same fact, and nothing more.
func TestErrorsKeepTheirFact(t *testing.T) {
	t.Parallel()
	facts := []error{driver.ErrHeld, driver.ErrLost, driver.ErrInvalid, driver.ErrUnsupported, driver.ErrUnsent}
	for _, sent := range append(facts, driver.ErrClosed, errors.New("connection reset")) {
		fact := sent
		if fact == driver.ErrHeld {
			sent = &driver.HeldError{Retry: 1500 * time.Microsecond, Holders: []driver.Holder{{Fence: 7}}}
		}
		got := through(t, ProblemOf(fmt.Errorf("redislock: %w", sent))).Err()
		for _, f := range facts {
			want := f == fact || f == driver.ErrUnsent && fact == driver.ErrClosed
			if errors.Is(got, f) != want {
				t.Errorf("%v arrives as %v", sent, got)
			}
		}
		var held *driver.HeldError
		if errors.As(got, &held) && (held.Retry != 2*time.Millisecond || held.Holders[0].Fence != 7) {
			t.Errorf("held arrives as %+v", held)
		}
	}
	for _, sent := range []error{&driver.HeldError{}, errors.New("connection reset")} {
		if got := through(t, ProblemOf(driver.Spent(sent))).Err(); !errors.Is(got, driver.ErrSpent) || errors.Is(got, driver.ErrHeld) != errors.Is(sent, driver.ErrHeld) {
			t.Errorf("%v of a spent owner arrives as %v", sent, got)
		}
	}
	for _, foreign := range []string{`{}`, `{"status":410}`, `{"distlock":"gone"}`} {
		var p Problem
		must.OK(t, json.Unmarshal([]byte(foreign), &p))
		if err := p.Err(); err == nil || KindOf(err) != Unknown {
			t.Errorf("%s is taken for a fact: %v", foreign, err)
		}
	}
}

func TestDurations(t *testing.T) {
	t.Parallel()
	if d := 1500 * time.Microsecond; Up(d) != 2 || Down(d) != 1 {
		t.Errorf("%v: up %d, down %d", d, Up(d), Down(d))
	}
	if d := Duration(1 << 62); d <= 0 {
		t.Errorf("a very long time is %v", d)
	}
}

// A name in a path is one segment, which no proxy cleans.
func TestSegmentOf(t *testing.T) {
	t.Parallel()
	for _, name := range []string{".", "..", "a/../b", "a//b", "%2F", "a b?c#d", "ü\n"} {
		u, err := url.Parse("http://host/v1/locks/" + SegmentOf(name) + "/ask")
		if err != nil || u.Path != "/v1/locks/"+name+"/ask" {
			t.Errorf("%q becomes %v, %v", name, u, err)
		}
	}
}

func TestUpOfTheLongest(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]int64{math.MaxInt64: 9223372036855, 1: 1, 0: 0, time.Millisecond: 1, -1: 0, time.Millisecond + 1: 2} {
		if got := Up(d); got != want {
			t.Errorf("%d ns: %d ms, want %d", d, got, want)
		}
	}
}
