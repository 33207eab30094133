package kubelock

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/record"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

var noon = time.Date(2026, 7, 1, 12, 0, 0, 345_678_901, time.FixedZone("", 7200))

// stored returns a Lease as the API server returns what was written.
func stored(t *testing.T, l *lease, version string) *lease {
	t.Helper()
	got := &lease{}
	must.OK(t, json.Unmarshal(must.Get(json.Marshal(l))(t), got))
	got.Metadata.ResourceVersion = version
	return got
}

func held(owner string) record.Record {
	return record.Record{Holder: owner, TTL: 1500 * time.Millisecond, Counter: 7, Token: "t", Meta: map[string]string{"host": "a"}}
}

// A Lease has the fields of client-go's leaderelection, each in the same form.
func TestForm(t *testing.T) {
	l := must.Get(written("controller", held("me"), noon))(t)
	const want = `{"holderIdentity":"me","leaseDurationSeconds":2,"acquireTime":"2026-07-01T10:00:00.345678Z","renewTime":"2026-07-01T10:00:00.345678Z","leaseTransitions":7}`
	expect.Equal(t, string(must.Get(json.Marshal(l.Spec))(t)), want)
	free := must.Get(written("controller", record.Record{Counter: 7, Rest: stored(t, l, "9")}, noon.Add(time.Second)))(t)
	const released = `{"holderIdentity":"","leaseDurationSeconds":1,"acquireTime":"2026-07-01T10:00:01.345678Z","renewTime":"2026-07-01T10:00:01.345678Z","leaseTransitions":7}`
	expect.Equal(t, string(must.Get(json.Marshal(free.Spec))(t)), released)
}

// What a Lease says is what was written. The fence of a grant is its Stamp.
func TestWhatIsWrittenIsRead(t *testing.T) {
	l := stored(t, must.Get(written("orders/555", held("me"), noon))(t), "41")
	got := must.Get(l.record())(t)
	if got.Holder != "me" || got.Foreign || got.TTL != 2*time.Second || got.Counter != 7 || got.Token != "t" || got.Meta["host"] != "a" || got.Stamp != 41 || got.Version != "41" {
		t.Errorf("%+v", got)
	}
	expect.Equal(t, got.Fence, 0, "of the version that granted")
	expect.Equal(t, l.lock(), "orders/555")
	got.Fence = 41
	renewed := must.Get(stored(t, must.Get(written("orders/555", got, noon.Add(time.Minute)))(t), "57").record())(t)
	expect.Equal(t, renewed.Fence, 41, "after a renewal")
	expect.Equal(t, renewed.Stamp, 57)
}

// client-go compares whole seconds, so each renewal is in a later one, whatever the clock says.
func TestRenewTimeIsLater(t *testing.T) {
	l := stored(t, must.Get(written("controller", held("me"), noon))(t), "1")
	acquired := l.Spec.AcquireTime
	for i, now := range []time.Time{noon, noon.Add(time.Millisecond), noon.Add(-time.Hour), noon.Add(time.Hour), noon} {
		before := l.Spec.RenewTime.Unix()
		r := must.Get(l.record())(t)
		l = stored(t, must.Get(written("controller", r, now))(t), "2")
		if l.Spec.RenewTime.Unix() <= before {
			t.Errorf("renewal %d is of the second %d, after %d", i, l.Spec.RenewTime.Unix(), before)
		}
		expect.Equal(t, l.Spec.AcquireTime.Equal(acquired.Time), true, "acquireTime stays")
	}
	r := must.Get(l.record())(t)
	r.Counter++
	expect.Equal(t, must.Get(written("controller", r, noon))(t).Spec.RenewTime.Equal(noon.Truncate(time.Microsecond)), true, "another grant is of now")
}

// What others have written into a Lease stays. What is of the holder before is not taken for the next one's.
func TestOthersInALease(t *testing.T) {
	l := stored(t, must.Get(written("controller", held("me"), noon))(t), "1")
	l.Metadata.Labels, l.Metadata.Annotations["team"] = map[string]string{"app": "shop"}, "a"
	l.Metadata.OwnerReferences = json.RawMessage(`[{"uid":"1"}]`)
	l = stored(t, must.Get(written("controller", must.Get(l.record())(t), noon))(t), "2")
	if l.Metadata.Labels["app"] != "shop" || l.Metadata.Annotations["team"] != "a" || string(l.Metadata.OwnerReferences) != `[{"uid":"1"}]` {
		t.Errorf("%+v", l.Metadata)
	}
	for what, change := range map[string]func(*spec){
		"another holder":  func(s *spec) { s.HolderIdentity = "pod-1_abc" },
		"another renewal": func(s *spec) { s.RenewTime.Time = noon.Add(time.Hour) },
		"no annotation":   func(*spec) { delete(l.Metadata.Annotations, holdNote) },
	} {
		other := *l
		change(&other.Spec)
		r := must.Get(other.record())(t)
		if !r.Foreign || r.Holder == "" || r.Token != "" || r.Fence != 0 || r.Meta != nil {
			t.Errorf("%s: %+v", what, r)
		}
	}
	l.Spec.HolderIdentity = ""
	expect.Equal(t, must.Get(l.record())(t).Foreign, false, "a free Lease is nobody's")
}

// Only a name that leads to the Lease is its lock's.
func TestWhichLock(t *testing.T) {
	for want, m := range map[string]metadata{
		"a":   {Name: "a"},
		"b":   {Name: "b", Annotations: map[string]string{nameNote: "another"}},
		"C/1": {Name: "0x430x2f1", Annotations: map[string]string{nameNote: "C/1"}},
		"":    {Name: "0x430x2f1"},
	} {
		expect.Equal(t, (&lease{Metadata: m}).lock(), want)
	}
}

func TestTooMuchForALease(t *testing.T) {
	r := held("me")
	r.Meta["note"] = strings.Repeat("x", mostNotes)
	_, err := written("controller", r, noon)
	if !errors.Is(err, driver.ErrInvalid) || len(err.Error()) > 200 {
		t.Errorf("%.300v", err)
	}
	expect.Be(t, expect.Err(written(strings.Repeat("x", mostNotes), held("me"), noon)), driver.ErrInvalid)
	for _, version := range []string{"", "0", "-1", "abc", "99999999999999999999"} {
		l := lease{Metadata: metadata{ResourceVersion: version}}
		if _, err := l.record(); err == nil {
			t.Errorf("resourceVersion %q is taken", version)
		}
	}
}
