package quorum_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/backend/quorum"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// ofMembers returns the URL of a quorum of any members.
func ofMembers(urls ...string) string {
	return "quorum:?" + url.Values{"member": urls}.Encode()
}

func TestOpen(t *testing.T) {
	id := driver.NewOwner()
	one := must.Get(quorum.Open(t.Context(), ofMembers("mem:a"+id, "mem:b"+id, "mem:c"+id)+"&member_timeout=300ms"))(t)
	defer one.Close()
	two := must.Get(driver.Open(t.Context(), ofMembers("mem:c"+id, "mem:b"+id, "mem:a"+id)))(t)
	defer two.Close()
	expect.Equal(t, one.Caps().Name, two.Caps().Name, "the same members in another order")
	take(t, one, request(driver.Exclusive))
	expect.Be(t, expect.Err(two.Acquire(t.Context(), request(driver.Exclusive))), driver.ErrHeld, "another connection")
}

func TestOpenRefuses(t *testing.T) {
	for u, says := range map[string]string{
		"quorum:":                                  "want quorum:?member=URL",
		"quorum://host?member=mem:a":               "want quorum:?member=URL",
		ofMembers("mem:a", "mem:b", "mem:a"):       "mem:a is a member twice",
		ofMembers("mem:a", "nonsense:b"):           `unknown URL scheme "nonsense"`,
		ofMembers("mem:a", "mem:b", "nonsense:c"):  `unknown URL scheme "nonsense"`,
		"quorum+redis://h1,h2,h3?colour=red":       "redis://h1:6379, redis://h2:6379, redis://h3:6379: distlock: invalid request",
		ofMembers("mem:a") + "&colour=red":         `unknown parameter "colour"`,
		ofMembers("mem:a") + "&drift=0.02":         `unknown parameter "drift"`,
		ofMembers("mem:a") + "&member_timeout=-1s": "member_timeout=-1s",
		"quorum+redis://u:secret@h1,h2,h1/0":       "h1:6379 is a member twice",
		ofMembers("redis://h1/0", "redis://h1/1"):  "h1 is a member twice",
		ofMembers("mem:a", "redis://u:secret@h /"): "malformed URL",
	} {
		_, err := quorum.Open(t.Context(), u)
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want: %s", u, err, says)
		}
	}
	expect.Be(t, expect.Err(quorum.Open(t.Context(), "redis://h1")), driver.ErrInvalid, "another scheme")
}

var schemes atomic.Int64

// late registers a scheme whose members can be opened once the test allows it.
func late() (scheme string, there *atomic.Bool, store *memlock.Store) {
	scheme = fmt.Sprintf("late%d", schemes.Add(1)) // the registry outlives a repeated test
	there, store = new(atomic.Bool), memlock.NewStore()
	driver.Register(scheme, func(context.Context, *url.URL) (driver.Backend, error) {
		if !there.Load() {
			return nil, errReset
		}
		return store.Connect(), nil
	})
	return scheme, there, store
}

// A member that is down at first joins later. A server with two addresses has one vote.
func TestOpenOneServerByTwoNames(t *testing.T) {
	scheme, there, _ := late()
	there.Store(true)
	_, err := quorum.Open(t.Context(), ofMembers(scheme+":one", scheme+":two", "mem:a"))
	if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(fmt.Sprint(err), "twice") {
		t.Errorf("%v, want ErrInvalid: a member twice", err)
	}
}

func TestLateMember(t *testing.T) {
	scheme, there, store := late()
	id := driver.NewOwner()
	b := must.Get(quorum.Open(t.Context(), ofMembers("mem:a"+id, "mem:b"+id, scheme+":c")))(t)
	defer b.Close()
	r := request(driver.Exclusive)
	take(t, b, r)
	b.Renew(t.Context(), []driver.Hold{r.Hold})
	if info, err := b.Inspect(t.Context(), r.Name); err != nil || len(info.Holders) != 1 {
		t.Errorf("inspect: %v %v", info, err)
	}
	w := must.Get(b.Watch(t.Context(), request(driver.Exclusive)))(t)
	w.Close()
	there.Store(true)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		take(t, b, r)
		info, err := store.Connect().Inspect(t.Context(), r.Name)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("the member that joined later has no vote: %v", err)
		}
		if len(info.Holders) == 1 {
			break
		}
	}
	expect.OK(t, b.Release(t.Context(), r.Hold))
	expect.OK(t, b.List(t.Context(), "", func(string) bool { return true }))
}

// Without a majority the error names each failed member, and all are closed.
func TestOpenWithoutAMajority(t *testing.T) {
	one, there, _ := late()
	two, _, _ := late()
	there.Store(false)
	_, err := quorum.Open(t.Context(), ofMembers("mem:a", one+":b", two+"://user:secret@host/c"))
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Fatalf("opened: %v", err)
	}
	for _, says := range []string{"1 of 3 members", "need 2", one + ":b", two + "://host/c", errReset.Error()} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("%v\nlacks %q", err, says)
		}
	}
	expect.Be(t, err, errReset, "the causes can't be reached")
}
