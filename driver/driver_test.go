package driver_test

import (
	"errors"
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
)

func TestModes(t *testing.T) {
	s := driver.Modes(driver.Exclusive, driver.Counted)
	if !s.Has(driver.Exclusive) || s.Has(driver.Read) || s.String() != "exclusive counted" {
		t.Errorf("%v", s)
	}
	expect.Equal(t, driver.AllModes.String(), "exclusive write read counted", "all modes", driver.AllModes)
	if driver.Mode(0).String() != "invalid" || driver.Mode(9).String() != "invalid" || driver.Queueing(9).String() != "invalid" {
		t.Error("a mode that does not exist has a name")
	}
	if !driver.Read.SameKind(driver.Write) || driver.Read.SameKind(driver.Exclusive) || driver.Read.Alone() || !driver.Write.Alone() {
		t.Error("kinds")
	}
}

func TestHeldErrorSaysWhoAndForHowLong(t *testing.T) {
	who := map[string]string{"program": "shop", "pid": "7", "host": "web1"}
	for want, err := range map[string]*driver.HeldError{
		"held by another owner": {},
		"held by \"shop\" pid 7 on web1 and 1 more, for another 1.5s unless renewed": {
			Retry: 1500 * time.Millisecond, Holders: []driver.Holder{{Meta: who}, {}},
		},
	} {
		if err.Error() != want || !errors.Is(fmt.Errorf("wrapped: %w", err), driver.ErrHeld) {
			t.Errorf("%q, want %q", err, want)
		}
	}
}

func TestNewOwner(t *testing.T) {
	form := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	seen := map[string]bool{}
	for range 1000 {
		owner := driver.NewOwner()
		if !form.MatchString(owner) || seen[owner] {
			t.Fatalf("owner %q", owner)
		}
		seen[owner] = true
	}
	owners := driver.NewOwners()
	start := owners.New()[:driver.OwnersStart]
	for range 1000 {
		owner := owners.New()
		if !form.MatchString(owner) || seen[owner] || owner[:driver.OwnersStart] != start {
			t.Fatalf("owner %q, want one that begins with %s", owner, start)
		}
		seen[owner] = true
	}
	if other := driver.NewOwners().New(); other[:driver.OwnersStart] == start {
		t.Errorf("two clients have the start %s", start)
	}
}

func TestFinal(t *testing.T) {
	for err, want := range map[error]bool{
		driver.ErrInvalid: true, driver.ErrUnsupported: true, driver.ErrClosed: true,
		driver.ErrLost: false, driver.ErrHeld: false, errors.New("reset"): false,
	} {
		if driver.Final(fmt.Errorf("wrapped: %w", err)) != want {
			t.Errorf("Final(%v) != %v", err, want)
		}
	}
	if g := (driver.Grant{Fence: 5, Fences: 3}); g.Last() != 7 {
		t.Errorf("last of 5…7: %d", g.Last())
	}
}

func TestIntersect(t *testing.T) {
	one := driver.Caps{
		Name: "one", Modes: driver.AllModes, Fence: true, Floor: true, Downgrade: true, Detached: true, Queueing: driver.QueueOnRequest,
		Revocable: driver.Modes(driver.Exclusive, driver.Counted), MinTTL: time.Second, Poll: time.Second,
	}
	two := driver.Caps{
		Name: "two", Modes: driver.Modes(driver.Exclusive, driver.Read, driver.Write), Fence: true, Session: true,
		Revocable: driver.Modes(driver.Exclusive, driver.Write), MinTTL: time.Minute, MaxTTL: time.Hour, Poll: time.Millisecond,
	}
	want := driver.Caps{
		Name: "one", Modes: two.Modes, Fence: true, Revocable: driver.Modes(driver.Exclusive), MinTTL: time.Minute, MaxTTL: time.Hour, Poll: time.Second,
	}
	expect.Equal(t, one.Intersect(two), want)
	want.Name = "two"
	expect.Equal(t, two.Intersect(one), want, "the other way round")
	expect.Equal(t, one.Intersect(one), one, "with itself")
}
