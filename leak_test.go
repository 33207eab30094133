package distlock_test

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// leaks makes a client and the reports of its leaks.
func leaks(t testing.TB, opts *distlock.Options) (*distlock.Client, chan distlock.Event) {
	reports := make(chan distlock.Event, 100)
	opts.Observer = &distlock.Observer{Leaked: func(e distlock.Event) { reports <- e }}
	return client(t, memlock.New(), opts), reports
}

// collected waits for the report of a leak, and fails if it is another one than want. Leases that
// became unreachable with it or before have been reported by then, except those that only it
// referred to.
func collected(t testing.TB, reports <-chan distlock.Event, want string) distlock.Event {
	t.Helper()
	for {
		runtime.GC()
		select {
		case e := <-reports:
			if e.Name != want {
				t.Errorf("a leak of %q was reported; want one of %q", e.Name, want)
				continue
			}
			return e
		case <-t.Context().Done():
			t.Fatal("no leak was reported")
		default:
			time.Sleep(time.Millisecond) // cleanups run in a goroutine of their own
		}
	}
}

// nothing fails if a leak is reported before the leak of a lease that is dropped now.
func nothing(t testing.TB, c *distlock.Client, reports <-chan distlock.Event) {
	t.Helper()
	for range 3 {
		runtime.GC()
	}
	drop(t, c.Mutex("the end"))
	collected(t, reports, "the end")
}

//go:noinline
func drop(t testing.TB, m *distlock.Mutex) { mustLock(t, m) }

func TestLeak(t *testing.T) {
	for what, take := range map[string]func(context.Context, *distlock.Client) (*distlock.Lease, error){
		"mutex": func(ctx context.Context, c *distlock.Client) (*distlock.Lease, error) { return c.Mutex("x").Lock(ctx) },
		"try": func(ctx context.Context, c *distlock.Client) (*distlock.Lease, error) {
			return c.Mutex("x").TryLock(ctx)
		},
		"write": func(ctx context.Context, c *distlock.Client) (*distlock.Lease, error) {
			return c.RWMutex("x").Lock(ctx)
		},
		"read": func(ctx context.Context, c *distlock.Client) (*distlock.Lease, error) {
			return c.RWMutex("x").RLock(ctx)
		},
		"try read": func(ctx context.Context, c *distlock.Client) (*distlock.Lease, error) {
			return c.RWMutex("x").TryRLock(ctx)
		},
		"permit": func(ctx context.Context, c *distlock.Client) (*distlock.Lease, error) {
			return c.Semaphore("x", 2).Acquire(ctx)
		},
		"fair": func(ctx context.Context, c *distlock.Client) (*distlock.Lease, error) {
			return c.Mutex("x", distlock.Fair()).Lock(ctx)
		},
		"bounded wait": func(ctx context.Context, c *distlock.Client) (*distlock.Lease, error) {
			return c.Mutex("x", distlock.WaitAtMost(time.Minute)).Lock(ctx)
		},
		"downgraded": func(ctx context.Context, c *distlock.Client) (*distlock.Lease, error) {
			lease, err := c.RWMutex("x").Lock(ctx)
			if err != nil {
				return nil, err
			}
			return lease, lease.Downgrade(ctx)
		},
		"with a context": func(ctx context.Context, c *distlock.Client) (*distlock.Lease, error) {
			lease, err := c.Mutex("x").Lock(ctx)
			if err == nil && (lease.Context().Err() != nil || distlock.FromContext(lease.Context()) != lease) {
				t.Error("its context has ended, or does not know the lease")
			}
			return lease, err
		},
		"of which only the end is known": func(ctx context.Context, c *distlock.Client) (*distlock.Lease, error) {
			lease, err := c.Mutex("x").Lock(ctx)
			if err == nil {
				done := lease.Context().Done()
				go func() { <-done }()
			}
			return lease, err
		},
		"revocable": func(ctx context.Context, c *distlock.Client) (*distlock.Lease, error) {
			return c.Mutex("x", distlock.Revocable(func(*distlock.Lease) {})).Lock(ctx)
		},
		"handed off": func(ctx context.Context, c *distlock.Client) (*distlock.Lease, error) {
			first, err := c.Mutex("x").Lock(ctx)
			if err != nil {
				return nil, err
			}
			time.AfterFunc(time.Millisecond, func() { _ = first.Unlock(ctx) })
			return c.Mutex("x").Lock(ctx)
		},
	} {
		t.Run(what, func(t *testing.T) {
			c, reports := leaks(t, &distlock.Options{HandoffWindow: time.Hour})
			owner, fence := func() (string, uint64) {
				lease := must.Get(take(t.Context(), c))(t)
				return lease.Owner(), lease.Fence()
			}()
			e := collected(t, reports, "x")
			if e.Owner != owner || e.Fence != fence || e.Held <= 0 || e.Err != nil {
				t.Errorf("reported: %+v, want Owner %s, Fence %d, Held", e, owner, fence)
			}
			first, _, _ := strings.Cut(e.Stack, "\n")
			if !strings.Contains(first, "distlock_test.TestLeak") || !strings.Contains(e.Stack, "leak_test.go:") {
				t.Errorf("taken at\n%s\nwant this test first", e.Stack)
			}
			info, err := c.Inspect(t.Context(), "x")
			if err != nil || len(info.Holders) != 1 || info.Holders[0].Owner != owner {
				t.Errorf("the lock: %+v, %v; want it held all the same", info, err)
			}
			nothing(t, c, reports) // reported once
		})
	}
}

// A lease in use is not reported, even if the user keeps only a part of it. A lease that has ended
// is not reported either.
func TestNoLeak(t *testing.T) {
	for what, use := range map[string]func(*distlock.Client) any{
		"the lease":   func(c *distlock.Client) any { return mustLock(t, c.Mutex("x")) },
		"its context": func(c *distlock.Client) any { return mustLock(t, c.Mutex("x")).Context() },
		"a context that descends from it": func(c *distlock.Client) any {
			return context.WithValue(mustLock(t, c.Mutex("x")).Context(), ctxKey{}, 1)
		},
		"the lease of a lock within": func(c *distlock.Client) any {
			lease, err := c.Mutex("y").Lock(mustLock(t, c.Mutex("x")).Context())
			expect.OK(t, err)
			return lease
		},
		"several": func(c *distlock.Client) any {
			all, err := distlock.Multi(c.Mutex("x"), c.Mutex("y")).Lock(t.Context())
			expect.OK(t, err)
			return all
		},
		"the context of several": func(c *distlock.Client) any {
			all, err := distlock.Multi(c.Mutex("x"), c.Mutex("y")).TryLock(t.Context())
			expect.OK(t, err)
			return all.Context()
		},
		"re-entered": func(c *distlock.Client) any {
			m := c.Mutex("x", distlock.Reentrant())
			lease, err := m.Lock(mustLock(t, m).Context())
			expect.OK(t, err)
			return lease
		},
		"unlocked": func(c *distlock.Client) any {
			for range 100 {
				mustUnlock(t, mustLock(t, c.Mutex("x")))
				mustUnlock(t, mustLock(t, c.RWMutex("x")))
				lease, err := c.Semaphore("s", 2).Acquire(t.Context())
				expect.OK(t, err)
				mustUnlock(t, lease)
			}
			return nil
		},
		"done": func(c *distlock.Client) any {
			err := c.Mutex("x").Do(t.Context(), func(context.Context) error {
				for range 3 {
					runtime.GC()
				}
				return nil
			})
			expect.OK(t, err)
			return nil
		},
		"to end by itself": func(c *distlock.Client) any {
			mustLock(t, c.Mutex("x", distlock.WithoutRenewal()))
			return nil
		},
	} {
		t.Run(what, func(t *testing.T) {
			c, reports := leaks(t, &distlock.Options{})
			used := use(c)
			nothing(t, c, reports)
			runtime.KeepAlive(used)
		})
	}
}

// Each lease of a re-entered hold is reported separately.
func TestLeakOfReentry(t *testing.T) {
	c, reports := leaks(t, &distlock.Options{})
	m := c.Mutex("x", distlock.Reentrant())
	outer := mustLock(t, m)
	for _, again := range []func(context.Context) (*distlock.Lease, error){m.Lock, m.TryLock} {
		func() {
			expect.OK(t, expect.Err(again(outer.Context())))
		}()
		if e := collected(t, reports, "x"); !strings.Contains(e.Stack, "leak_test.go:") {
			t.Errorf("taken at\n%s\nwant this test first", e.Stack)
		}
	}
	mustUnlock(t, outer)
	nothing(t, c, reports)
}

// Of several locks that were taken together at least the last is reported.
func TestLeakOfSeveral(t *testing.T) {
	for what, take := range map[string]func(*distlock.MultiLock) (*distlock.MultiLease, error){
		"lock": func(m *distlock.MultiLock) (*distlock.MultiLease, error) { return m.Lock(t.Context()) },
		"try":  func(m *distlock.MultiLock) (*distlock.MultiLease, error) { return m.TryLock(t.Context()) },
	} {
		t.Run(what, func(t *testing.T) {
			c, reports := leaks(t, &distlock.Options{})
			func() {
				must.Get(take(distlock.Multi(c.Mutex("x"), c.Mutex("y"))))(t)
			}()
			for name := ""; name != "y"; {
				runtime.GC()
				select {
				case e := <-reports:
					name = e.Name
				default:
				}
			}
		})
	}
}

// A leaked lease can be revoked. The lease that OnRevoke receives can unlock it.
func TestRevokeOfALeak(t *testing.T) {
	c, reports := leaks(t, &distlock.Options{})
	unlocked := make(chan error, 1)
	drop(t, c.Mutex("x", distlock.Revocable(func(l *distlock.Lease) { unlocked <- l.Unlock(l.Context()) })))
	collected(t, reports, "x")
	info := must.Get(c.Inspect(t.Context(), "x"))(t)
	must.OK(t, c.Revoke(t.Context(), info))
	expect.OK(t, <-unlocked, "Unlock")
	free(t, c, "x")
}

// If a goroutine still waits for the context of a leaked lease, that context ends with the lease.
func TestLossOfALeak(t *testing.T) {
	c, reports := leaks(t, &distlock.Options{})
	done := func() <-chan struct{} { return mustLock(t, c.Mutex("x")).Context().Done() }()
	collected(t, reports, "x")
	info, err := c.Inspect(t.Context(), "x")
	if err == nil {
		err = c.ForceUnlock(t.Context(), info)
	}
	must.OK(t, err)
	<-done
}

// Events have a context, though leaks are reported.
func TestEventsWithLeaked(t *testing.T) {
	events := make(chan distlock.Event, 1)
	c := client(t, memlock.New(), &distlock.Options{Observer: &distlock.Observer{
		Leaked: func(distlock.Event) {},
		Lost:   func(e distlock.Event) { events <- e },
	}})
	lease := mustLock(t, c.Mutex("x"))
	info, err := c.Inspect(t.Context(), "x")
	if err == nil {
		err = c.ForceUnlock(t.Context(), info)
	}
	must.OK(t, err)
	if lost := <-events; lost.Context == nil {
		t.Error("no context")
	}
	runtime.KeepAlive(lease)
}
