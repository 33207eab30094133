package drivertest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
)

// mutant is a backend with one defect, and the check that must find it.
type mutant struct {
	defect string
	check  string
	alter  func(*lab, *patched)
}

func mutants() []mutant {
	return slices.Concat(holdMutants, fenceMutants, modeMutants, kindMutants, queueMutants, watchMutants, revokeMutants, fixedMutants, nameMutants, lifeMutants, detachedMutants, refusedMutants, factMutants)
}

// TestEveryCheckCanFail shows that there is no check without a mutant of its own.
func TestEveryCheckCanFail(t *testing.T) {
	for _, c := range Checks() {
		if !slices.ContainsFunc(mutants(), func(m mutant) bool { return m.check == c.Name }) {
			t.Errorf("%s has no mutant", c.Name)
		}
	}
}

// TestMutants shows that the suite finds each defect, alone and under Run.
func TestMutants(t *testing.T) {
	for _, m := range mutants() {
		t.Run(m.defect, func(t *testing.T) {
			for _, extra := range []time.Duration{0, busy} {
				switch err := tryWith(t, m.alter, checkNamed(t, m.check), func(h *Harness) { h.extra = extra }); {
				case err == nil:
					t.Errorf("%s did not find it in %v more", m.check, extra)
				case errors.Is(err, ErrNotClaimed), errors.Is(err, errSlow):
					t.Errorf("%s could not tell in %v more: %v", m.check, extra, err)
				default:
					t.Logf("found by %s: %v", m.check, err)
				}
			}
		})
	}
}

func checkNamed(t *testing.T, name string) Check {
	t.Helper()
	all := Checks()
	i := slices.IndexFunc(all, func(c Check) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("there is no check %s", name)
	}
	return all[i]
}

// sane are backends without a defect, which differ in what they claim.
var sane = map[string]func(*lab, *patched){
	"as memlock": nil,
	"session":    session,
	"session that can't be prolonged": func(l *lab, p *patched) {
		session(l, p)
		var taken sync.Map // TTLs by owner
		acquire, renew := p.acquire, p.renew
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			taken.LoadOrStore(r.Owner, r.TTL)
			return acquire(ctx, r)
		}
		p.renew = func(ctx context.Context, holds []driver.Hold) []error {
			errs := renew(ctx, holds)
			for i, h := range holds {
				if ttl, ok := taken.Load(h.Owner); ok && errs[i] == nil && h.TTL > ttl.(time.Duration) {
					errs[i] = driver.ErrUnsupported
				}
			}
			return errs
		}
	},
	"no queue": func(_ *lab, p *patched) {
		p.caps.Queueing = driver.QueueNever
		p.acquire = refuse(p.acquire, func(r driver.Request) bool { return r.Queue })
	},
	"queue of mutexes only": func(_ *lab, p *patched) {
		p.caps.QueuedModes = driver.Modes(driver.Exclusive)
		p.acquire = refuse(p.acquire, func(r driver.Request) bool { return r.Queue && r.Mode != driver.Exclusive })
	},
	"mutex only": func(_ *lab, p *patched) {
		p.caps.Modes, p.caps.Queueing, p.caps.Downgrade, p.caps.Floor, p.caps.Fence = driver.Modes(driver.Exclusive), driver.QueueNever, false, false, false
		p.caps.Revocable = p.caps.Modes
		p.acquire = refuse(p.acquire, func(r driver.Request) bool { return r.Queue || r.Mode != driver.Exclusive })
	},
	"no downgrade": func(_ *lab, p *patched) {
		p.caps.Downgrade = false
		p.acquire = refuse(p.acquire, func(r driver.Request) bool {
			return r.Mode == driver.Read && p.holds(r.Name, r.Owner) == driver.Write
		})
	},
	"nothing optional": func(_ *lab, p *patched) {
		p.watch = func(context.Context, driver.Request) (driver.Watch, error) { return driver.Watch{}, driver.ErrSkip }
		p.inspect = func(context.Context, string) (driver.Info, error) { return driver.Info{}, driver.ErrSkip }
		p.list = func(context.Context, string, func(string) bool) error { return driver.ErrSkip }
		p.caps.Revocable = 0
		p.revoke = func(context.Context, driver.Hold) error { return driver.ErrUnsupported }
		p.all = func(context.Context, []driver.Request) ([]driver.Grant, error) { return nil, driver.ErrSkip }
	},
	"mutexes only are asked for": func(_ *lab, p *patched) {
		p.caps.Revocable = driver.Modes(driver.Exclusive)
		p.revoke = func(ctx context.Context, h driver.Hold) error {
			if h.Mode != driver.Exclusive {
				return driver.ErrUnsupported
			}
			return p.mem.Revoke(ctx, h)
		}
	},
	"picky":         picky,
	"slow to start": func(_ *lab, p *patched) { p.caps.MinTTL = 4 * time.Second },
}

// TestSane shows that the suite finds no defect in a correct backend.
func TestSane(t *testing.T) {
	for name, alter := range sane {
		t.Run(name, func(t *testing.T) {
			for _, c := range Checks() {
				if err := try(t, alter, c); err != nil && !errors.Is(err, ErrNotClaimed) {
					t.Errorf("%s: %v", c.Name, err)
				}
			}
		})
	}
}

// TestNotClaimed shows that a check returns ErrNotClaimed for features that a backend does not claim.
func TestNotClaimed(t *testing.T) {
	for check, backend := range map[string]string{
		"counted/limit": "mutex only", "queue/fifo": "no queue", "queue/permits": "queue of mutexes only", "fence/span": "mutex only", "fence/floor": "mutex only",
		"shared/downgrade": "no downgrade", "watch/release": "nothing optional", "inspect/holder": "nothing optional",
		"inspect/list": "nothing optional", "close/ends-session": "as memlock",
		"revoke/asks": "nothing optional", "fixed/ends": "session", "fixed/not-early": "session", "detached/taken-over": "session",
	} {
		if err := try(t, sane[backend], checkNamed(t, check)); !errors.Is(err, ErrNotClaimed) {
			t.Errorf("%s on a backend %q: got %v, want ErrNotClaimed", check, backend, err)
		}
	}
}

// TestHang shows that a check ends when a backend does not, and names the call.
func TestHang(t *testing.T) {
	for want, alter := range map[string]func(*lab, *patched){
		"Acquire on connection A did not": func(l *lab, p *patched) {
			p.acquire = func(context.Context, driver.Request) (driver.Grant, error) {
				<-l.end
				return driver.Grant{}, driver.ErrClosed
			}
		},
		"Renew on connection A did not": func(l *lab, p *patched) {
			p.renew = func(context.Context, []driver.Hold) []error { <-l.end; return []error{driver.ErrClosed} }
		},
		"Open and Close did not": func(l *lab, p *patched) {
			p.close = func() error { <-l.end; return nil }
		},
	} {
		err := try(t, alter, checkNamed(t, "lost/never-without-loss"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

// TestSlowMachine shows that a check does not blame the backend for a slow machine.
func TestSlowMachine(t *testing.T) {
	stall := func(_ *lab, p *patched) {
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			time.Sleep(400 * time.Millisecond)
			return acquire(ctx, r)
		}
	}
	for _, name := range []string{"renew/extends", "again/restarts-ttl", "queue/place-lives", "queue/repeat-restarts-place", "queue/retry"} {
		expect.OK(t, try(t, stall, checkNamed(t, name)), name)
	}
	for _, name := range []string{"renew/extends", "again/restarts-ttl", "again/late", "renew/late", "fixed/renewed", "shared/downgrade-late", "ttl/expires"} {
		if err := try(t, frail, checkNamed(t, name)); err != nil {
			t.Errorf("%s, on connections that end: %v", name, err)
		}
	}
}

// A refusal may be told late: the first call meets a connection that was cut, and takes all the time in which others would be made.
func TestLateRefusal(t *testing.T) {
	late := func(_ *lab, p *patched) {
		refused, cut := p.denied, false
		p.denied = func(call string) error {
			if cut {
				return refused(call)
			}
			cut = true
			time.Sleep(withdrawn)
			return errors.New("connection reset")
		}
	}
	expect.OK(t, try(t, late, checkNamed(t, "refused/release")))
}

// TestNoAnswer shows that a call without an answer breaks no promise among others of a busy machine, unless there never is one.
func TestNoAnswer(t *testing.T) {
	for check, mute := range map[string]func(p *patched, answer func() error){
		"exclusion/two-connections": func(p *patched, answer func() error) {
			acquire := p.acquire
			p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
				if err := answer(); err != nil {
					return driver.Grant{}, err
				}
				return acquire(ctx, r)
			}
		},
		"renew/only-by-owner": func(p *patched, answer func() error) {
			renew := p.renew
			p.renew = func(ctx context.Context, holds []driver.Hold) []error {
				if err := answer(); err != nil {
					return slices.Repeat([]error{err}, len(holds))
				}
				return renew(ctx, holds)
			}
		},
		"release/only-by-owner": func(p *patched, answer func() error) {
			release := p.release
			p.release = func(ctx context.Context, h driver.Hold) error { return cmp.Or(answer(), release(ctx, h)) }
		},
		"inspect/holder": func(p *patched, answer func() error) {
			inspect := p.inspect
			p.inspect = func(ctx context.Context, name string) (driver.Info, error) {
				if err := answer(); err != nil {
					return driver.Info{}, err
				}
				return inspect(ctx, name)
			}
		},
		"inspect/list": func(p *patched, answer func() error) {
			list := p.list
			p.list = func(ctx context.Context, prefix string, yield func(string) bool) error {
				return cmp.Or(answer(), list(ctx, prefix, yield))
			}
		},
		"revoke/asks": func(p *patched, answer func() error) {
			revoke := p.revoke
			p.revoke = func(ctx context.Context, h driver.Hold) error { return cmp.Or(answer(), revoke(ctx, h)) }
		},
	} {
		for most, ok := range map[int32]bool{3: true, 1000: false} {
			for _, extra := range []time.Duration{0, busy} {
				var silent atomic.Int32
				answer := func() error {
					if silent.Add(1) <= most {
						return errors.New("no leader")
					}
					return nil
				}
				err := tryWith(t, func(_ *lab, p *patched) { mute(p, answer) }, checkNamed(t, check), func(h *Harness) { h.extra = extra })
				if (err == nil) != (ok && extra > 0) || err != nil && !strings.Contains(err.Error(), "no leader") {
					t.Errorf("%s: %d calls without an answer, %v more: %v", check, most, extra, err)
				}
			}
		}
	}
}

// frail is a slow machine before a connection that ends when it is silent for a TTL: a call that
// takes so long has an unknown outcome.
func frail(_ *lab, p *patched) {
	var answered sync.Map // times by owner
	acquire, renew := p.acquire, p.renew
	call := func(h driver.Hold, f func() error) error {
		since, _ := answered.LoadOrStore(h.Owner, time.Now())
		time.Sleep(400 * time.Millisecond)
		if time.Since(since.(time.Time)) >= h.TTL {
			return errors.New("the connection was silent for too long")
		}
		answered.Store(h.Owner, time.Now())
		return f()
	}
	p.acquire = func(ctx context.Context, r driver.Request) (g driver.Grant, err error) {
		err = call(r.Hold, func() (err error) { g, err = acquire(ctx, r); return err })
		return g, err
	}
	p.renew = func(ctx context.Context, holds []driver.Hold) []error {
		errs := make([]error, len(holds))
		for i, h := range holds {
			errs[i] = call(h, func() error { return renew(ctx, []driver.Hold{h})[0] })
		}
		return errs
	}
}

// TestUnreachable shows that a store that can't be reached is not taken for a broken
// promise.
func TestUnreachable(t *testing.T) {
	down := errors.New("connection refused")
	h := &Harness{Open: func(context.Context) (driver.Backend, error) { return nil, down }}
	for _, c := range Checks() {
		if err := c.Run(t.Context(), h); !errors.Is(err, down) {
			t.Errorf("%s: got %v, want the error of Open", c.Name, err)
		}
		if err := c.Run(t.Context(), new(Harness)); err == nil {
			t.Errorf("%s: a harness without Open is accepted", c.Name)
		}
	}
	synctest.Test(t, func(t *testing.T) { // under Run, which opens it again
		h.Timeout, h.extra = 30*time.Second, busy
		h.caps = sync.OnceValues(func() (driver.Caps, error) { return h.readCaps(context.Background()) })
		if err := Checks()[0].Run(t.Context(), h); !errors.Is(err, down) {
			t.Errorf("got %v, want the error of Open", err)
		}
	})
}

// TestLeavesNothing shows that the suite releases all it took.
func TestLeavesNothing(t *testing.T) {
	for _, c := range Checks() {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(nil)
			if err := c.Run(t.Context(), l.harness()); err != nil && !errors.Is(err, ErrNotClaimed) {
				t.Error(err)
			}
			l.store.Connect().List(t.Context(), "", func(name string) bool {
				t.Errorf("%s left %q behind", c.Name, name)
				return true
			})
		})
	}
}

// TestNames shows that names of checks are unique and their promises are sentences.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Checks() {
		if seen[c.Name] || strings.Count(c.Name, "/") != 1 || strings.ContainsAny(c.Name, " _") {
			t.Errorf("name %q is no unique subject/promise", c.Name)
		}
		if !strings.HasSuffix(c.Promise, ".") {
			t.Errorf("%s: promise %q is no sentence", c.Name, c.Promise)
		}
		seen[c.Name] = true
	}
}

// refuse answers ErrUnsupported to some requests.
func refuse(acquire func(context.Context, driver.Request) (driver.Grant, error), which func(driver.Request) bool) func(context.Context, driver.Request) (driver.Grant, error) {
	return func(ctx context.Context, r driver.Request) (driver.Grant, error) {
		if which(r) {
			return driver.Grant{}, driver.ErrUnsupported
		}
		return acquire(ctx, r)
	}
}

// session makes holds and places last as long as their connection.
func session(_ *lab, p *patched) {
	const endless = 24 * time.Hour
	p.caps.Session, p.caps.Detached, p.caps.Queueing = true, false, driver.QueueAlways
	mine := make(chan map[string]driver.Hold, 1)
	mine <- map[string]driver.Hold{}
	acquire, all, renew, end := p.acquire, p.all, p.renew, p.close
	keep := func(r driver.Request) {
		m := <-mine
		m[r.Owner] = r.Hold
		mine <- m
	}
	p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
		asked := r.TTL
		r.TTL = endless
		g, err := acquire(ctx, r)
		g.TTL = asked
		if err == nil || r.Queue {
			keep(r)
		}
		return g, err
	}
	p.all = func(ctx context.Context, rs []driver.Request) ([]driver.Grant, error) {
		rs = slices.Clone(rs)
		for i := range rs {
			rs[i].TTL = endless
		}
		grants, err := all(ctx, rs)
		for i := range grants {
			keep(rs[i])
		}
		return grants, err
	}
	p.renew = func(ctx context.Context, holds []driver.Hold) []error {
		holds = slices.Clone(holds)
		m := <-mine
		for i, h := range holds {
			if m[h.Owner].TTL == endless {
				holds[i].TTL = endless
			}
		}
		mine <- m
		return renew(ctx, holds)
	}
	p.close = func() error {
		m := <-mine
		for _, h := range m {
			p.mem.Release(context.Background(), h)
		}
		mine <- m
		return end()
	}
}

// holds returns the mode in which owner holds name; 0: it does not.
func (p *patched) holds(name, owner string) driver.Mode {
	info, _ := p.mem.Inspect(context.Background(), name)
	for _, h := range info.Holders {
		if h.Owner == owner {
			return h.Mode
		}
	}
	return 0
}

// holder returns a hold on name; its Owner is empty if there is none.
func (p *patched) holder(name string) driver.Hold {
	info, _ := p.mem.Inspect(context.Background(), name)
	if len(info.Holders) == 0 {
		return driver.Hold{}
	}
	return driver.Hold{Name: name, Owner: info.Holders[0].Owner, Mode: info.Holders[0].Mode}
}

// few makes a harness for a store with few connections.
func few(h *Harness) { h.Serial, h.Holds = true, 2 }

// TestLongMutantsOnFewConnections shows that the suite finds as much on a store with few
// connections, but for a defect of big batches.
func TestLongMutantsOnFewConnections(t *testing.T) {
	for _, m := range mutants() {
		if m.check == "renew/big-batch" {
			continue
		}
		if err := tryWith(t, m.alter, checkNamed(t, m.check), few); err == nil || errors.Is(err, ErrNotClaimed) || errors.Is(err, errSlow) {
			t.Errorf("%s: %s answered %v", m.defect, m.check, err)
		}
	}
}

// TestFewConnections counts the connections that are open at once, and the holds of each.
func TestFewConnections(t *testing.T) {
	for _, c := range Checks() {
		var mu sync.Mutex
		open, most, mostHeld := 0, 0, 0
		count := func(_ *lab, p *patched) {
			mu.Lock()
			defer mu.Unlock()
			open++
			most = max(most, open)
			held, end := map[string]bool{}, p.close
			acquire, release := p.acquire, p.release
			p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
				g, err := acquire(ctx, r)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					held[r.Owner] = true
					mostHeld = max(mostHeld, len(held))
				}
				return g, err
			}
			p.release = func(ctx context.Context, h driver.Hold) error {
				mu.Lock()
				delete(held, h.Owner)
				mu.Unlock()
				return release(ctx, h)
			}
			var once sync.Once
			p.close = func() error {
				once.Do(func() {
					mu.Lock()
					open--
					mu.Unlock()
				})
				return end()
			}
		}
		if err := tryWith(t, count, c, few); err != nil && !errors.Is(err, ErrNotClaimed) {
			t.Errorf("%s: %v", c.Name, err)
		}
		if most > 2 {
			t.Errorf("%s had %d connections open at once, want 2 at most", c.Name, most)
		}
		if many := c.Name == "renew/big-batch" || strings.HasPrefix(c.Name, "names/"); many && mostHeld > 2 {
			t.Errorf("%s held %d locks at once on a connection, want 2 at most", c.Name, mostHeld)
		}
	}
}

// TestBrokenWrapsTheAnswer shows that a broken promise can be distinguished from a server that
// refuses connections.
func TestBrokenWrapsTheAnswer(t *testing.T) {
	full := errors.New("too many connections")
	refuse := func(_ *lab, p *patched) {
		p.acquire = func(context.Context, driver.Request) (driver.Grant, error) { return driver.Grant{}, full }
	}
	for _, name := range []string{"exclusion/two-connections", "exclusion/race", "names/case"} {
		if err := try(t, refuse, checkNamed(t, name)); !errors.Is(err, full) {
			t.Errorf("%s: got %v, want the answer of Acquire", name, err)
		}
	}
}
