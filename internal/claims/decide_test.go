package claims

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
)

const (
	now = int64(time.Hour)
	ttl = 30 * time.Second
)

var modes = map[byte]driver.Mode{'x': driver.Exclusive, 'w': driver.Write, 'r': driver.Read, 'c': driver.Counted}

// lockOf makes a lock of a list such as "r1 r2 | w3": readers 1 and 2 hold, and writer 3 is first in the queue. A claim ends
// as many seconds from now as its number says. A semaphore has two permits.
func lockOf(list string) *Lock {
	l := &Lock{Limit: 2}
	queue := false
	for i, text := range strings.Fields(list) {
		if text == "|" {
			queue = true
			continue
		}
		c := Claim{Owner: text, Mode: modes[text[0]], Since: now, Until: now + int64(text[1]-'0')*int64(time.Second)}
		if queue {
			c.Place = int64(i)
		} else {
			c.Fence = int64(i + 1)
		}
		l.Claims = append(l.Claims, c)
	}
	return l
}

// String is the reverse of lockOf.
func (l *Lock) String() string {
	var parts []string
	for i, c := range l.Claims {
		if !c.Holds() && (i == 0 || l.Claims[i-1].Holds()) {
			parts = append(parts, "|")
		}
		parts = append(parts, c.Owner)
	}
	return strings.Join(parts, " ")
}

func requestOf(owner string) driver.Request {
	return driver.Request{Hold: driver.Hold{Name: "x", Owner: owner, Mode: modes[owner[0]], TTL: ttl}, Limit: 2, Queue: true}
}

// What each attempt does to a lock, and who blocks it. A lock that stays as it was was not written.
func TestAcquire(t *testing.T) {
	for _, c := range []struct {
		lock, owner string
		blockers    string
		after       string
	}{
		{"", "x1", "", "x1"},
		{"x1", "x2", "x1", "x1 | x2"},
		{"x1", "x1", "", "x1"},
		{"x1 | x2", "x3", "x1 x2", "x1 | x2 x3"},
		{"x1 | x2", "x2", "x1", "x1 | x2"},
		{"| x1 x2", "x1", "", "x1 | x2"},
		{"| x1 x2", "x2", "x1", "| x1 x2"},
		{"| x1", "x2", "x1", "| x1 x2"},

		{"r1", "r2", "", "r1 r2"},
		{"r1", "w2", "r1", "r1 | w2"},
		{"r1 r2", "w3", "r1 r2", "r1 r2 | w3"},
		{"w1", "r2", "w1", "w1 | r2"},
		{"r1 | w2", "r3", "w2", "r1 | w2 r3"},
		{"w1 | r2", "r3", "w1", "w1 | r2 r3"},
		{"| r1 w2 r3", "r1", "", "r1 | w2 r3"},
		{"| r1 w2 r3", "r3", "w2", "| r1 w2 r3"},
		{"r1 | w2", "w2", "r1", "r1 | w2"},

		{"c1", "c2", "", "c1 c2"},
		{"c1 c2", "c3", "c1 c2", "c1 c2 | c3"},
		{"c1 | c2", "c3", "c1 c2", "c1 | c2 c3"},
		{"c1 | c2 c3", "c2", "", "c1 c2 | c3"},
		{"| c1 c2", "c2", "", "c2 | c1"},

		{"x1", "w2", "x1", "x1 | w2"},
		{"x1", "r2", "x1", "x1 | r2"},
		{"x1", "c2", "x1", "x1 | c2"},
		{"r1", "x2", "r1", "r1 | x2"},
		{"r1", "c2", "r1", "r1 | c2"},
		{"c1", "r2", "c1", "c1 | r2"},
		{"c1", "x2", "c1", "c1 | x2"},
		{"r1 | x2", "r3", "x2", "r1 | x2 r3"},
		{"r1 | c2", "r3", "c2", "r1 | c2 r3"},
		{"c1 | r2", "c3", "c1 r2", "c1 | r2 c3"},
		{"| r1 c2 r3", "r3", "c2", "| r1 c2 r3"},
		{"| r1 c2", "c2", "r1", "| r1 c2"},
		{"x1 | c2 c3", "c3", "x1 c2", "x1 | c2 c3"},
		{"| c1 c2 r3", "c2", "", "c2 | c1 r3"},
		{"| c1 r2 c3", "c3", "c1 r2", "| c1 r2 c3"},
		{"c1 | x2", "c1", "", "c1 | x2"},
	} {
		l, r := lockOf(c.lock), requestOf(c.owner)
		var blockers []string
		for _, b := range l.Blockers(&r) {
			blockers = append(blockers, b.Owner)
		}
		if got := strings.Join(blockers, " "); got != c.blockers || l.Admits(&r) != (got == "") {
			t.Errorf("%s in %q is blocked by %q, want %q", c.owner, c.lock, got, c.blockers)
		}
		d := l.Acquire(&r, Claim{Fence: 100}, now)
		if held := errors.Is(d.Err, driver.ErrHeld); l.String() != c.after || held != (c.blockers != "") {
			t.Errorf("%s in %q: %v, then %q, want %q", c.owner, c.lock, d.Err, l, c.after)
		}
	}
}

// A try leaves the lock as it is.
func TestTry(t *testing.T) {
	l, r := lockOf("x1 | x2"), requestOf("x3")
	r.Queue = false
	if d := l.Acquire(&r, Claim{Fence: 100}, now); d.Own || len(d.Sooner) > 0 || l.String() != "x1 | x2" {
		t.Errorf("%+v, then %q", d, l)
	}
}

// A permit behind another kind is refused at once if its limit is not that of the permits there, also of those that only wait.
func TestLimitOfMixedKinds(t *testing.T) {
	l := lockOf("x1")
	l.Limit = 0
	c2, c3, x4 := requestOf("c2"), requestOf("c3"), requestOf("x4")
	c3.Limit = 3
	for _, step := range []struct {
		r     *driver.Request
		want  error
		after string
	}{
		{&c2, driver.ErrHeld, "x1 | c2"}, {&c3, driver.ErrInvalid, "x1 | c2"}, {&x4, driver.ErrHeld, "x1 | c2 x4"},
	} {
		if d := l.Acquire(step.r, Claim{Fence: 100}, now); !errors.Is(d.Err, step.want) || l.String() != step.after {
			t.Errorf("%s: %v, then %q, want %q", step.r.Owner, d.Err, l, step.after)
		}
	}
	if info := l.Info("x", now); info.Limit != 0 || info.Mode != driver.Exclusive {
		t.Errorf("a mutex with limit %d, mode %v", info.Limit, info.Mode)
	}
	l.Remove("x1")
	if d := l.Acquire(&c2, Claim{Fence: 100}, now); d.Err != nil || l.Info("x", now).Limit != 2 {
		t.Errorf("%v, then %q with limit %d", d.Err, l, l.Limit)
	}
	l.Remove("c2")
	if d := l.Acquire(&c3, Claim{Fence: 100}, now); !errors.Is(d.Err, driver.ErrHeld) || l.String() != "| x4 c3" {
		t.Errorf("behind no permit: %v, then %q", d.Err, l)
	}
}

// Another limit, an upgrade, and an owner that has another kind are refused for good.
func TestRefusedForGood(t *testing.T) {
	for _, c := range []struct {
		lock, owner string
		change      func(*driver.Request)
		want        error
	}{
		{"x1", "x1", func(r *driver.Request) { r.Mode = driver.Write }, driver.ErrInvalid},
		{"c1 | r2", "r2", func(r *driver.Request) { r.Mode = driver.Counted }, driver.ErrInvalid},
		{"x1 | c2", "c3", func(r *driver.Request) { r.Limit = 3 }, driver.ErrInvalid},
		{"c1", "c2", func(r *driver.Request) { r.Limit = 3 }, driver.ErrInvalid},
		{"r1", "r1", func(r *driver.Request) { r.Mode = driver.Write }, driver.ErrUnsupported},
	} {
		l, r := lockOf(c.lock), requestOf(c.owner)
		if c.change != nil {
			c.change(&r)
		}
		if d := l.Acquire(&r, Claim{Fence: 100}, now); !errors.Is(d.Err, c.want) || d.Own || l.String() != c.lock {
			t.Errorf("%s in %q: %+v, then %q", c.owner, c.lock, d, l)
		}
	}
}

// A hold that is taken again lives on for at least as long, is as old as it was, and has the new fence. A downgrade may let others in.
func TestTakenAgain(t *testing.T) {
	l, r := lockOf("w1"), requestOf("w1")
	l.Claims[0].Since, l.Claims[0].Until = 1, now+2*int64(ttl)
	r.Mode = driver.Read
	d := l.Acquire(&r, Claim{Fence: 100}, now)
	if c := l.Hold("w1"); c.Since != 1 || c.Until != now+2*int64(ttl) || c.Fence != 100 || c.Mode != driver.Read || !d.Frees {
		t.Errorf("%+v: %+v", d, c)
	}
}

// A refusal names the holders, or without any the queue, and when the first of them ends.
func TestRefusal(t *testing.T) {
	for _, c := range []struct {
		lock, owner, named string
		retry              int
		signaled           bool
	}{
		{"x5", "x9", "x5", 5, true},
		{"x5 | x9", "x9", "x5", 5, true},
		{"x5 | x3", "x9", "x5", 3, false},
		{"x5 | x3 x9", "x9", "x5", 3, false},
		{"x5 | x9 x3", "x9", "x5", 5, true},
		{"r4 r8 r6", "w9", "r4 r8 r6", 4, true},
		{"r4 | w8", "r9", "w8", 8, false},
		{"w4 | r8 r9", "r9", "w4", 4, false},
		{"| x3", "x9", "x3", 3, false},
		{"c6 c3", "c9", "c6 c3", 3, true},
		{"c6 c3 | c5", "c9", "c6 c3", 3, false},
		{"x6 | c3", "c9", "x6", 3, false},
		{"c6 | x3", "c9", "c6", 3, false},
	} {
		l, r := lockOf(c.lock), requestOf(c.owner)
		held := l.refusal(&r, now)
		var named []string
		for _, h := range held.Holders {
			named = append(named, h.Owner)
		}
		if got := strings.Join(named, " "); got != c.named || held.Retry != time.Duration(c.retry)*time.Second {
			t.Errorf("%s in %q: %q, retry after %v", c.owner, c.lock, got, held.Retry)
		}
		r.Queue = false
		if held.Signaled != c.signaled || l.refusal(&r, now).Signaled {
			t.Errorf("%s in %q is signalled: %v; without a place: %v", c.owner, c.lock, held.Signaled, l.refusal(&r, now).Signaled)
		}
	}
	many := &Lock{Kind: driver.Counted, Limit: 10_000}
	for i := range many.Limit {
		many.Claims = append(many.Claims, Claim{Owner: fmt.Sprint(i), Mode: driver.Counted, Fence: int64(i + 1), Until: Forever})
	}
	r := requestOf("c1")
	if held := many.refusal(&r, now); len(held.Holders) != maxNamed || held.Retry != 0 {
		t.Errorf("%d holders without an end: %d named, retry after %v", many.Limit, len(held.Holders), held.Retry)
	}
}

// A place is written again only if it would not live for the TTL.
func TestPlace(t *testing.T) {
	l, r := lockOf("x9"), requestOf("x5")
	for _, c := range []struct {
		after   time.Duration
		written bool
	}{{0, true}, {PlaceLife(ttl) - ttl, false}, {PlaceLife(ttl) - ttl + 1, true}} {
		at := now + int64(c.after)
		if d := l.Acquire(&r, Claim{Fence: 100}, at); d.Own != c.written || l.FirstPlace().Until < at+int64(ttl) || l.FirstPlace().Since != now {
			t.Errorf("after %v: %+v, then %+v", c.after, d, l.FirstPlace())
		}
	}
	if d := l.Acquire(&r, Claim{Fence: 100, Address: "new"}, now); !d.Own || l.FirstPlace().Address != "new" {
		t.Errorf("with a new address: %+v, then %+v", d, l.FirstPlace())
	}
}

// A place is for what its owner asks for now.
func TestPlaceInAnotherMode(t *testing.T) {
	l, r := lockOf("w1 | r2"), requestOf("r2")
	l.FirstPlace().Until, r.Mode = now+2*int64(ttl), driver.Write
	if d := l.Acquire(&r, Claim{Fence: 100}, now); !d.Own || l.FirstPlace().Mode != driver.Write {
		t.Errorf("%+v, then a place for %v", d, l.FirstPlace().Mode)
	}
}

// A free lock is kept for the first place for TurnLife after the attempt of another owner.
func TestTurnLife(t *testing.T) {
	for lock, limited := range map[string]bool{"| x9 x8": true, "x7 | x9": false, "| x1": false, "r7 | w9": false, "| r9 w8": true, "c7 | c9": true, "c7 c6 | c9": false,
		"x7 | c9": false, "c7 | r9": false, "| c9 r8": true, "| r9 c8": true} {
		l := lockOf(lock)
		r := requestOf(lock[strings.IndexAny(lock, "xrwc"):][:1] + "0")
		if r.Mode == driver.Read {
			r.Mode = driver.Write
		}
		before := l.FirstPlace().Until
		d := l.Acquire(&r, Claim{Fence: 100}, now)
		want := before
		if limited {
			want = now + int64(driver.TurnLife)
		}
		if len(d.Sooner) > 0 != limited || l.FirstPlace().Until != want {
			t.Errorf("%q: %+v, the first place lives for %v", lock, d, time.Duration(l.FirstPlace().Until-now))
		}
	}
}

// Places whose owners would get the lock together have their turns at the same time.
func TestTurnsTogether(t *testing.T) {
	for lock, limited := range map[string]string{
		"| x9 x8": "x9", "| r9 r8 r7 w6 r5": "r9 r8 r7", "r9 | r8 r7 x9": "r8 r7", "| c9 c8 c7": "c9 c8", "c9 | c8 c7": "c8", "| r9 r1 r7 x6": "r9 r7", "w9 | r8": "",
	} {
		l := lockOf(lock)
		var got []string
		for _, c := range l.limitTurns(now) {
			got = append(got, c.Owner)
		}
		if strings.Join(got, " ") != limited || len(l.limitTurns(now)) > 0 {
			t.Errorf("%q: turns of %q, want %q", lock, got, limited)
		}
	}
}

// A place that ends takes the others of its client with it two turns later at most, but not those that were asked for again,
// that are ahead of it, and may not be asked for again so soon, that came later, or of other clients.
func TestEndOfAClient(t *testing.T) {
	one, two := driver.NewOwners(), driver.NewOwners()
	far, seconds := now+int64(time.Hour), int64(time.Second)
	place := func(owner string, since, until int64) Claim {
		return Claim{Owner: owner, Mode: driver.Exclusive, Place: since, Since: since, Until: until}
	}
	ahead, dead, mate, late, other := one.New(), one.New(), one.New(), one.New(), two.New()
	l := &Lock{Claims: []Claim{place(ahead, 0, far), place(dead, 1, now), place(mate, 2, far), place(other, 3, far), place(late, now+1, far)}}
	if ended, sooner := l.Expire(now + seconds); ended != 1 || len(sooner) != 1 || sooner[0].Owner != mate || sooner[0].Until != now+int64(driver.TurnLife) {
		t.Fatalf("%d ended; sooner: %+v", ended, sooner)
	}
	r := requestOf("x1")
	r.Owner, r.Mode = mate, driver.Exclusive
	l.Claims = append([]Claim{{Owner: two.New(), Mode: driver.Exclusive, Fence: 1, Until: far}}, l.Claims...)
	if d := l.Acquire(&r, Claim{Fence: 100}, now+seconds); d.Err == nil || !d.Own {
		t.Fatalf("asked again: %+v", d)
	}
	if ended, sooner := l.Expire(now + 3*seconds); ended != 0 || len(sooner) != 0 || l.Claim(ahead).Until != far || l.Claim(other).Until != far || l.Claim(late).Until != far {
		t.Errorf("%d ended; sooner: %+v; then %+v", ended, sooner, l.Claims)
	}
}

// A release wakes the places that may hold now, and others if no place is before them.
func TestLetsIn(t *testing.T) {
	for _, c := range []struct {
		lock, places string
		others       bool
	}{
		{"", "", true},
		{"x1", "", true},
		{"| x1 x2", "x1", false},
		{"x1 | x2", "", false},
		{"| r1 r2 w3 r4", "r1 r2", false},
		{"r1 | r2", "r2", true},
		{"c1 | c2 c3", "c2", false},
		{"| r1 r2 c3 r4", "r1 r2", false},
		{"r1 | c2 r3", "", false},
		{"| c1 c2 c3 r4", "c1 c2", false},
		{"c1 | c2 r3", "c2", false},
		{"x1 | r2 c3", "", false},
		{"| x1 r2", "x1", false},
		{"| w1 x2", "w1", false},
	} {
		places, others := lockOf(c.lock).LetsIn()
		var got []string
		for _, p := range places {
			got = append(got, p.Owner)
		}
		if strings.Join(got, " ") != c.places || others != c.others {
			t.Errorf("%q lets in %v, others %v", c.lock, got, others)
		}
	}
}

// Claims end at their time, and holds come before the queue.
func TestSortAndExpire(t *testing.T) {
	l := lockOf("c1 c2 c3 | c4 c5")
	slices.Reverse(l.Claims)
	if n, _ := l.Expire(now + int64(2*time.Second)); n != 2 {
		t.Errorf("%d claims have ended, want 2", n)
	}
	if l.Sort(); l.String() != "c3 | c4 c5" {
		t.Errorf("%q", l)
	}
	if !l.Remove("c4") || l.Remove("c4") || l.Claim("c5") == nil || l.Hold("c5") != nil {
		t.Errorf("%q", l)
	}
}
