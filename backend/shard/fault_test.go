package shard_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/backend/shard"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// While a member is down, the locks of the others work for hours, also in processes that start
// meanwhile. The member comes back by itself.
func TestAMemberIsDown(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, "a", "b", "c")
			p := c.process("a b c")
			locks := must.Get(distlock.New(p, nil))(t)
			defer locks.Close()
			lease := map[string]*distlock.Lease{}
			for _, m := range []string{"a", "b", "c"} {
				lease[m] = must.Get(locks.Mutex(at(t, m, "a", "b", "c")).Lock(t.Context()))(t)
			}
			p.wires["b"].set(!hangs, hangs)
			time.Sleep(3 * time.Hour)
			for m, l := range lease {
				if (l.Err() == nil) != (m != "b") {
					t.Errorf("the lock at %s: %v", m, l.Err())
				}
			}
			late := c.process("c b a")
			late.wires["b"].set(!hangs, hangs)
			for _, m := range []string{"a", "b", "c"} {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				_, err := late.Acquire(ctx, request(at(t, m, "a", "b", "c")))
				cancel()
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

// A renewal with an excessive TTL is refused, and those beside it are not.
func TestRenewalForTooLong(t *testing.T) {
	p := newCluster(t, "a", "b", "c").process("a b c")
	r := request("lock")
	take(t, p, r)
	long := r.Hold
	long.TTL = math.MaxInt64 - time.Hour
	errs := p.Renew(t.Context(), []driver.Hold{long, r.Hold})
	expect.Be(t, errs[0], driver.ErrInvalid, "renewed for", long.TTL)
	if errs[1] != nil {
		t.Errorf("renewed as before: %v", errs[1])
	}
}

// spread returns the URL of a shard. Each member is NAME=URL.
func spread(members ...string) string {
	var parts []string
	for _, m := range members {
		parts = append(parts, "member="+url.QueryEscape(m))
	}
	return "shard:?" + strings.Join(parts, "&")
}

func TestOpen(t *testing.T) {
	id := driver.NewOwner()
	a, b, c := "a=mem:a"+id, "b=mem:b"+id, "c=mem:c"+id
	one := must.Get(shard.Open(t.Context(), spread(a, b, c)))(t)
	defer one.Close()
	two := must.Get(driver.Open(t.Context(), spread(c, a, b)))(t)
	defer two.Close()
	for i := range 20 {
		r := request(fmt.Sprint("lock", i))
		take(t, one, r)
		expect.Be(t, expect.Err(two.Acquire(t.Context(), request(r.Name))), driver.ErrHeld, "another connection")
	}
	expect.Equal(t, two.Caps().Name, "shard(a=mem:a"+id+" b=mem:b"+id+" c=mem:c"+id+")", "Caps().Name")
	expect.Equal(t, one.Caps().Name, two.Caps().Name, "Caps().Name")
}

// Equal names of members do not make two stores one: a caller may hold a lock of each.
func TestTwoShardsWithEqualNamesOfMembers(t *testing.T) {
	var locks []distlock.Locker
	for range 2 {
		b := must.Get(shard.New([]shard.Member{{Name: "a", Backend: memlock.New()}, {Name: "b", Backend: memlock.New()}}))(t)
		c := must.Get(distlock.New(b, nil))(t)
		defer c.Close()
		locks = append(locks, c.Mutex("x"))
	}
	lease, err := distlock.Multi(locks...).Lock(t.Context())
	must.OK(t, err, "Multi")
	expect.OK(t, lease.Unlock(t.Context()), "Unlock")
}

func TestOpenRefuses(t *testing.T) {
	for u, says := range map[string]string{
		"shard:":                                     "want shard:?member=NAME=URL",
		"shard://host?member=a=mem:":                 "want shard:?member=NAME=URL",
		"shard:?member=a=mem:a#x&member=b=mem:b":     "want shard:?member=NAME=URL", // and not one member
		spread("mem:a"):                              "a member has no name",
		spread("redis://h/?a=b"):                     "a member has no name",
		spread("a=mem:", "a=mem:"):                   "two members have the name a",
		spread("a,b=mem:"):                           `name "a,b"`,
		spread("=mem:"):                              "member 1 has no name",
		spread("a=mem:", "b=nonsense://u:secret@h"):  `member b: distlock: invalid request: unknown URL scheme "nonsense"`,
		spread("a=mem:") + "&colour=red":             `unknown parameter "colour"`,
		spread("a=mem:") + "&joining=b=mem:":         `unknown parameter "joining"`,
		spread("a=mem:", "b=mem:?"):                  "",
		spread("a=mem:", "b=redis://u:secret@h/%zz"): "malformed URL",
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
	expect.Be(t, expect.Err(shard.Open(t.Context(), "mem:")), driver.ErrInvalid, "another scheme")
	expect.Be(t, expect.Err(shard.New(nil)), driver.ErrInvalid, "no members")
	expect.Be(t, expect.Err(shard.New([]shard.Member{{Name: "a"}})), driver.ErrInvalid, "a nil member")
}

// A member's ErrUnsent is passed on.
func TestUnsent(t *testing.T) {
	p := newCluster(t, "a", "b").process("a b")
	p.wires["a"].refuse()
	r := request(at(t, "a", "a", "b"))
	expect.Be(t, expect.Err(p.Acquire(t.Context(), r)), driver.ErrUnsent, "Acquire")
	expect.Be(t, p.Release(t.Context(), r.Hold), driver.ErrUnsent, "Release")
	take(t, p, request(at(t, "b", "a", "b")))
}
