package shard_test

import (
	"errors"
	"math"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/shard"
	"github.com/distlock/distlock/driver"
)

// While a member is down, the locks of the others work for hours, also in processes that start
// meanwhile. The member comes back by itself.
func TestAMemberIsDown(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, "a", "b", "c")
			p := c.process("a b c")
			locks, err := distlock.New(p, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer locks.Close()
			lease := map[string]*distlock.Lease{}
			for _, m := range []string{"a", "b", "c"} {
				if lease[m], err = locks.Mutex(at(t, m, "a", "b", "c")).Lock(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			p.wires["b"].set(!hangs, hangs)
			time.Sleep(3 * time.Hour)
			for m, l := range lease {
				if (l.Err() == nil) != (m != "b") {
					t.Errorf("the lock at %s: %v", m, l.Err())
				}
			}
			late, err := c.openCut("a b c", "b")
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range []string{"a", "b", "c"} {
				_, err := late.Acquire(t.Context(), request(at(t, m, "a", "b", "c")))
				if (m == "b") == errors.Is(err, driver.ErrHeld) {
					t.Errorf("a later process at %s: %v", m, err)
				}
			}
			p.wires["b"].set(false, false)
			late.wires["b"].set(false, false)
			take(t, late, request(at(t, "b", "a", "b", "c")))
		})
	}
}

// Without a majority nothing is granted and holds are lost in time, since a process with another
// list would not be noticed.
func TestWithoutAMajority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "a", "b", "c")
		p := c.process("a b c")
		locks, err := distlock.New(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer locks.Close()
		lease, err := locks.Mutex(at(t, "a", "a", "b", "c")).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p.wires["b"].set(true, false)
		p.wires["c"].set(true, false)
		time.Sleep(2 * time.Minute)
		if !errors.Is(lease.Err(), distlock.ErrLost) {
			t.Errorf("the lease: %v, want ErrLost", lease.Err())
		}
		_, err = p.Acquire(t.Context(), request(at(t, "a", "a", "b", "c")))
		for _, says := range []string{"majority", "b: ", "c: ", errDown.Error()} {
			if err == nil || driver.Final(err) || !strings.Contains(err.Error(), says) {
				t.Errorf("%v, want an unknown outcome with %q", err, says)
			}
		}
		if _, err := c.openCut("a b c", "b c"); err == nil || driver.Final(err) {
			t.Errorf("opened without a majority: %v", err)
		}
	})
}

// One slow member does not make the answers of the others late.
func TestRenewDoesNotWaitForASlowMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newCluster(t, "a", "b", "c").process("a b c")
		var holds []driver.Hold
		for _, m := range []string{"a", "b", "c"} {
			r := request(at(t, m, "a", "b", "c"))
			r.TTL = 4 * time.Second
			take(t, p, r)
			holds = append(holds, r.Hold)
		}
		p.wires["b"].set(false, true)
		start := time.Now()
		errs := p.Renew(t.Context(), holds)
		if d := time.Since(start); d > 600*time.Millisecond {
			t.Errorf("it took %v", d)
		}
		if errs[0] != nil || errs[2] != nil || errs[1] == nil || errors.Is(errs[1], driver.ErrLost) {
			t.Errorf("%v", errs)
		}
	})
}

// Where a hold shares a session its TTL can't be prolonged. Registrations are replaced for a lock
// with a longer TTL, and there is always one.
func TestLongerTTLAtSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "a", "b", "c")
		c.fixed = true
		p := c.process("a b c")
		old := request("old")
		take(t, p, old)
		r := request("lock")
		r.TTL = 5 * time.Minute
		take(t, p, r)
		for range 60 {
			time.Sleep(10 * time.Second)
			if err := errors.Join(p.Renew(t.Context(), []driver.Hold{r.Hold, old.Hold})...); err != nil {
				t.Fatal(err)
			}
			c.refused("a b", "a,b,c")
		}
		if err := errors.Join(p.Release(t.Context(), r.Hold), p.Release(t.Context(), old.Hold), p.Close()); err != nil {
			t.Fatal(err)
		}
		c.process("a b") // and none was left behind
	})
}

// A renewal with an excessive TTL is refused: after an overflow the registrations would seem to
// outlive the hold.
func TestRenewalForTooLong(t *testing.T) {
	p := newCluster(t, "a", "b", "c").process("a b c")
	r := request("lock")
	take(t, p, r)
	long := r.Hold
	long.TTL = math.MaxInt64 - time.Hour
	if err := p.Renew(t.Context(), []driver.Hold{long})[0]; !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("renewed for %v: %v, want ErrInvalid", long.TTL, err)
	}
	if err := p.Renew(t.Context(), []driver.Hold{r.Hold})[0]; err != nil {
		t.Errorf("renewed as before: %v", err)
	}
}

// spread returns the URL of a shard. Each member is NAME=URL, with "joining " or "leaving " in
// front.
func spread(members ...string) string {
	var parts []string
	for _, m := range members {
		key, value, ok := strings.Cut(m, " ")
		if !ok {
			key, value = "member", m
		}
		parts = append(parts, key+"="+url.QueryEscape(value))
	}
	return "shard:?" + strings.Join(parts, "&")
}

func TestOpen(t *testing.T) {
	id := driver.NewOwner()
	a, b, c, d := "a=mem:a"+id, "b=mem:b"+id, "c=mem:c"+id, "d=mem:d"+id
	one, err := shard.Open(t.Context(), spread(a, b, c)+"&record=2m&group=x")
	if err != nil {
		t.Fatal(err)
	}
	two, err := driver.Open(t.Context(), spread(a, b, "leaving "+c, "joining "+d)+"&group=x")
	if err != nil {
		t.Fatal(err)
	}
	defer two.Close()
	if _, err := shard.Open(t.Context(), spread(a, b, d)+"&group=x"); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("the new list beside the old one: %v", err)
	}
	take(t, one, request("lock"))
	if _, err := two.Acquire(t.Context(), request("lock")); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("another connection: %v", err)
	}
	if name := one.Caps().Name; name != "shard(a b c)" {
		t.Errorf("Caps().Name is %q", name)
	}
	one.Close()
}

func TestOpenRefuses(t *testing.T) {
	for u, says := range map[string]string{
		"shard:":                                      "want shard:?member=NAME=URL",
		"shard://host?member=a=mem:":                  "want shard:?member=NAME=URL",
		"shard:?member=a=mem:a#x&member=b=mem:b":      "want shard:?member=NAME=URL", // and not one member
		spread("mem:a"):                               "a member has no name",
		spread("redis://h/?a=b"):                      "a member has no name",
		spread("joining a=mem:"):                      "want shard:?member=NAME=URL",
		spread("a=mem:", "a=mem:"):                    "two members have the name a",
		spread("a,b=mem:"):                            `name "a,b"`,
		spread("=mem:"):                               "member 1 has no name",
		spread("a=mem:", "b=nonsense://u:secret@h"):   `member b: distlock: invalid request: unknown URL scheme "nonsense"`,
		spread("a=mem:") + "&colour=red":              `unknown parameter "colour"`,
		spread("a=mem:") + "&record=1ms":              "Record 1ms",
		spread("a=mem:") + "&group=%00":               "Group",
		spread("a=mem:") + "&group=%ff":               "Group",
		spread("a=mem:", "b=redis://u:secret@h/%zz"):  "malformed URL",
		spread("a=mem:", "b=mem:", "joining c=mem:?"): "",
	} {
		b, err := shard.Open(t.Context(), u)
		if says == "" && err == nil {
			b.Close()
			continue
		}
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want: %s", u, err, says)
		}
	}
	if _, err := shard.Open(t.Context(), "mem:"); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("another scheme: %v", err)
	}
	if _, err := shard.New(t.Context(), nil, nil); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("no members: %v", err)
	}
	if _, err := shard.New(t.Context(), []shard.Member{{Name: "a"}}, nil); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a nil member: %v", err)
	}
}

// A member's ErrUnsent is passed on, unless something was sent to the other member.
func TestUnsent(t *testing.T) {
	for what, c := range map[string]struct {
		list, down string
		want       bool
	}{
		"one member":     {"a", "a", true},
		"the first one":  {"-a +b", "a", true},
		"the second one": {"-a +b", "b", false},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := newCluster(t, "a", "b")
				p := cl.process(c.list)
				r := request("lock")
				take(t, p, r)
				if err := p.Release(t.Context(), r.Hold); err != nil {
					t.Fatal(err)
				}
				p.wires[c.down].refuse()
				again := request("lock")
				_, err := p.Acquire(t.Context(), again)
				if err == nil || errors.Is(err, driver.ErrUnsent) != c.want {
					t.Errorf("Acquire: %v; does it match ErrUnsent? want %v", err, c.want)
				}
				if err := p.Release(t.Context(), again.Hold); err == nil || errors.Is(err, driver.ErrUnsent) != (c.list == "a") {
					t.Errorf("Release: %v", err)
				}
			})
		})
	}
}
