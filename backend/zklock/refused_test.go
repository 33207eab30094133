package zklock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
)

func TestConformanceWhileRefused(t *testing.T) {
	t.Parallel()
	for kind, enter := range entrances {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			drivertest.RunRefused(t, func(t *testing.T) drivertest.Harness {
				e := enter(t)
				return drivertest.Harness{
					TTL:      6 * time.Second,
					Withdraw: e.withdraw,
					Open: func(ctx context.Context) (driver.Backend, error) {
						b, err := Open(ctx, patiently(e.url))
						if err != nil {
							return nil, err
						}
						b.caps.Name = e.url
						r := request("", driver.Exclusive) // a refusal of the first call would be a fact
						r.TTL = 6 * time.Second
						_, err = b.Acquire(ctx, r)
						return b, errors.Join(err, b.Release(ctx, r.Hold))
					},
				}
			})
		})
	}
}

// For four seconds the servers refuse the user of all programs. A waiter, a candidate and a holder go on, and what was
// unlocked, or given up, meanwhile blocks nobody.
func TestProgramsWhileRefused(t *testing.T) {
	t.Parallel()
	for kind, enter := range entrances {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			programsWhileRefused(t, enter(t))
		})
	}
}

func programsWhileRefused(t *testing.T, e entrance) {
	program := func() *distlock.Client {
		c, err := distlock.Open(t.Context(), patiently(e.url), &distlock.Options{TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	lock := func(c *distlock.Client, name string) *distlock.Lease {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		l, err := c.Mutex(name).Lock(ctx)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return l
	}
	a, b := program(), program()
	held, unlocked, busy, contended := lock(a, "held"), lock(a, "unlocked"), lock(b, "busy"), lock(b, "contended")
	permit, err := a.Semaphore("permits", 1).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	term := lock(b, "leader")
	waited, led := make(chan error, 1), make(chan error, 2)
	go func() {
		l, err := a.Mutex("busy").Lock(t.Context())
		if err == nil {
			err = l.Unlock(t.Context())
		}
		waited <- err
	}()
	leading, resign := context.WithCancel(t.Context())
	defer resign()
	go func() {
		led <- a.Election("leader").Lead(leading, func(term context.Context) error {
			led <- nil
			<-term.Done()
			return nil
		})
	}()
	gaveUp := make(chan error, 1)
	brief, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	go func() {
		_, err := a.Mutex("contended").Lock(brief)
		gaveUp <- err
	}()
	for _, name := range []string{"busy", "leader", "contended"} {
		eventually(t, "two are in line for "+name, func() bool {
			info, err := b.Inspect(t.Context(), name)
			return err == nil && len(info.Waiters) == 1
		})
	}

	restore := e.withdraw()
	end := time.Now().Add(4 * time.Second)
	ctx, cancel := context.WithDeadline(t.Context(), end.Add(-3*time.Second))
	defer cancel()
	for what, l := range map[string]*distlock.Lease{"unlock": unlocked, "unlock of a permit": permit} {
		if err := l.Unlock(ctx); err == nil || errors.Is(err, distlock.ErrInvalid) || errors.Is(err, distlock.ErrLost) {
			t.Errorf("%s: %v", what, err)
		}
	}
	giveUp()
	if err := <-gaveUp; !errors.Is(err, context.Canceled) {
		t.Errorf("a waiter that gives up: %v", err)
	}
	time.Sleep(time.Until(end))
	restore()

	if err := held.Err(); err != nil {
		t.Errorf("the holder: %v", err)
	}
	if len(waited)+len(led) > 0 {
		t.Error("a waiter or a candidate ended while it was refused")
	}
	for _, l := range []*distlock.Lease{busy, term, contended} {
		eventually(t, "the lock is released", func() bool { return l.Unlock(t.Context()) == nil || l.Err() != nil })
	}
	for what, c := range map[string]chan error{"the waiter": waited, "the candidate": led} {
		select {
		case err := <-c:
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(patience):
			t.Fatalf("%s still waits", what)
		}
	}
	for _, name := range []string{"unlocked", "contended"} {
		lock(b, name)
	}
	last, err := b.Semaphore("permits", 1).Acquire(t.Context())
	if err != nil {
		t.Errorf("a permit: %v", err)
	} else if err := last.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if err := held.Unlock(t.Context()); err != nil {
		t.Errorf("the holder: %v", err)
	}
}
