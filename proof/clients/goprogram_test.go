//go:build linux

package clients

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock"
)

// arguments of a call.
type args struct{ url.Values }

func (a args) ms(key string) time.Duration {
	n, _ := strconv.ParseInt(a.Get(key), 10, 64)
	return time.Duration(n) * time.Millisecond
}

func (a args) int(key string) int {
	n, _ := strconv.Atoi(a.Get(key))
	return n
}

// answers lets the calls of a program in Go answer.
type answers struct{ mu sync.Mutex }

func (o *answers) say(call string, words ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	fmt.Println(call, strings.ReplaceAll(strings.TrimSpace(fmt.Sprintln(words...)), "\n", " "))
}

// hear makes each call of the standard input until one is exit.
func hear(do func(call, what string, a args)) error {
	for s := bufio.NewScanner(os.Stdin); s.Scan(); {
		words := append(strings.Fields(s.Text()), "")
		q, err := url.ParseQuery(words[2])
		if err != nil {
			return err
		}
		if words[1] == "exit" {
			break
		}
		go do(words[0], words[1], args{q})
	}
	return nil
}

// goClients is the program in Go. It is the reference of the others.
type goClients struct {
	answers
	clients, others sync.Map // by number of the call
	leases, cancels sync.Map
}

func goProgram(_, _ string) error {
	g := &goClients{}
	return hear(func(call, what string, a args) {
		if err := g.make(call, what, a); err != nil {
			g.say(call, "error", className(err), err)
		}
	})
}

// className returns the name of the class of an error in the other languages.
func className(err error) string {
	switch {
	case errors.Is(err, distlock.ErrHeld):
		return "Held"
	case errors.Is(err, distlock.ErrLost), errors.Is(err, distlock.ErrReleased):
		return "Lost"
	case errors.Is(err, distlock.ErrInvalid), errors.Is(err, distlock.ErrUnsupported):
		return "Invalid"
	}
	return "Unavailable"
}

func goURL(a args) string {
	hosts := strings.ReplaceAll(a.Get("urls"), ",http://", ",")
	if t := a.Get("token"); t != "" {
		hosts = strings.Replace(hosts, "http://", "http://:"+t+"@", 1)
	}
	return hosts
}

func (g *goClients) make(call, what string, a args) error {
	ctx := context.Background()
	switch what {
	case "open":
		for _, clients := range []*sync.Map{&g.clients, &g.others} {
			c, err := distlock.Open(ctx, goURL(a), nil)
			if err != nil {
				return err
			}
			clients.Store(call, c)
		}
		g.say(call, "opened")
	case "lock":
		return g.lock(call, a)
	case "check":
		if err := g.lease(a).Err(); err != nil {
			return fmt.Errorf("%w: %w", distlock.ErrLost, err)
		}
		g.say(call, "held")
	case "extend":
		if err := g.lease(a).Extend(ctx, a.ms("ttl")); err != nil {
			return err
		}
		g.say(call, "held")
	case "release":
		if err := g.lease(a).Unlock(ctx); err != nil {
			return err
		}
		g.say(call, "released")
	case "cancel":
		cancel, _ := g.cancels.Load(a.Get("call"))
		cancel.(context.CancelFunc)()
	case "forget":
		g.leases.Delete(a.Get("lease"))
		g.say(call, "forgotten")
	case "collect":
		runtime.GC()
		g.say(call, "collected")
	case "twice":
		return g.twice(call, a)
	case "shared":
		return g.shared(call, a)
	case "turns":
		return g.turns(call, a)
	case "wrong":
		return g.wrong(call, a)
	default:
		return fmt.Errorf("no call %s", what)
	}
	return nil
}

func (g *goClients) client(a args) *distlock.Client {
	c, _ := g.clients.Load(a.Get("client"))
	return c.(*distlock.Client)
}

// probe is another client of the same servers.
func (g *goClients) probe(a args) *distlock.Client {
	c, _ := g.others.Load(a.Get("client"))
	return c.(*distlock.Client)
}

func (g *goClients) lease(a args) *distlock.Lease {
	l, _ := g.leases.Load(a.Get("lease"))
	return l.(*distlock.Lease)
}

// locker are the calls of one lock, of whatever kind.
type locker struct {
	lock, try func(context.Context) (*distlock.Lease, error)
}

func lockerOf(c *distlock.Client, a args, o ...distlock.LockOption) locker {
	if ttl := a.ms("ttl"); ttl > 0 {
		o = append(o, distlock.WithTTL(ttl))
	}
	if d := a.ms("min_hold"); d > 0 {
		o = append(o, distlock.MinHold(d))
	}
	if d := a.ms("max_hold"); d > 0 {
		o = append(o, distlock.MaxHold(d))
	}
	if wait := a.ms("wait"); wait > 0 {
		o = append(o, distlock.WaitAtMost(wait))
	}
	if n := a.int("limit"); n > 0 {
		s := c.Semaphore(a.Get("name"), n, o...)
		return locker{s.Acquire, s.TryAcquire}
	}
	switch rw := c.RWMutex(a.Get("name"), o...); a.Get("mode") {
	case "read":
		return locker{rw.RLock, rw.TryRLock}
	case "write":
		return locker{rw.Lock, rw.TryLock}
	}
	m := c.Mutex(a.Get("name"), o...)
	return locker{m.Lock, m.TryLock}
}

func (g *goClients) lock(call string, a args) error {
	ctx, cancel := context.WithCancel(context.Background())
	g.cancels.Store(call, cancel)
	defer g.cancels.Delete(call) // it refers to the lease
	l := lockerOf(g.client(a), a)
	take := l.lock
	if a.Get("wait") == "0" {
		take = l.try
	}
	lease, err := take(ctx)
	if err != nil && ctx.Err() != nil {
		g.say(call, "cancelled")
		return nil
	}
	if err != nil {
		return err
	}
	g.leases.Store(call, lease)
	if a.Has("watch") {
		go g.watch(call, lease)
	}
	g.say(call, "held", lease.Fence())
	return nil
}

// watch says when the lease was trusted last, once it is lost.
func (g *goClients) watch(call string, lease *distlock.Lease) {
	trusted := uint64(0)
	for now := monotonic(); lease.Err() == nil; now = monotonic() {
		trusted = now
		time.Sleep(10 * time.Millisecond)
	}
	if err := context.Cause(lease.Context()); !errors.Is(err, distlock.ErrReleased) {
		g.say(call, "lost", trusted)
	}
}

func (g *goClients) twice(call string, a args) error {
	l, other := lockerOf(g.client(a), a), lockerOf(g.probe(a), a)
	var found []any
	for range 2 {
		lease, err := l.lock(context.Background())
		if err != nil {
			return err
		}
		state := "locked"
		if taken, err := other.try(context.Background()); err == nil {
			state = "unlocked"
			taken.Unlock(context.Background())
		}
		if err := lease.Unlock(context.Background()); err != nil {
			state = "failed"
		}
		found = append(found, state)
	}
	g.say(call, found...)
	return nil
}

func (g *goClients) shared(call string, a args) error {
	u := sharedUse{limit: a.int("limit")}
	l, other := lockerOf(g.client(a), a), lockerOf(g.probe(a), a)
	u.run(func(work func()) error {
		lease, err := l.lock(context.Background())
		if err != nil {
			return err
		}
		defer lease.Unlock(context.Background())
		work()
		return nil
	}, func() (got int) {
		for range u.limit {
			if lease, err := other.try(context.Background()); err == nil {
				defer lease.Unlock(context.Background())
				got++
			}
		}
		return got
	})
	g.say(call, u.most, u.ran, u.raised, u.free)
	return nil
}

// sharedUse is how two tasks use one lock.
type sharedUse struct {
	limit int

	mu                              sync.Mutex
	inside, most, ran, raised, free int
}

// run lets two tasks work under a lock. The second one, if it is let in, asks how many may come in beside it once the first has gone.
func (u *sharedUse) run(under func(work func()) error, probe func() int) {
	u.free = -1
	entered, over := [2]chan struct{}{make(chan struct{}), make(chan struct{})}, [2]chan struct{}{make(chan struct{}), make(chan struct{})}
	for n := range 2 {
		go func() {
			defer close(over[n])
			in := sync.OnceFunc(func() { close(entered[n]) })
			defer in()
			err := under(func() {
				u.count(1)
				in()
				if n == 0 {
					select {
					case <-entered[1]:
					case <-time.After(500 * time.Millisecond):
					}
				} else {
					<-over[0]
					u.free = probe()
				}
				u.count(-1)
			})
			if err != nil {
				u.mu.Lock()
				u.raised++
				u.mu.Unlock()
			}
		}()
		<-entered[0]
	}
	<-over[0]
	<-over[1]
}

func (u *sharedUse) count(d int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.inside += d
	u.ran += max(d, 0)
	u.most = max(u.most, u.inside)
}

func (g *goClients) turns(call string, a args) error {
	l := lockerOf(g.client(a), a, distlock.Fair())
	return manyTurns(&g.answers, call, a, func(int) (func(), error) {
		lease, err := l.lock(context.Background())
		return func() { lease.Unlock(context.Background()) }, err
	})
}

// manyTurns lets many take turns until there were enough.
func manyTurns(o *answers, call string, a args, lock func(i int) (unlock func(), err error)) error {
	var mu sync.Mutex
	var order []int
	n, total, over := a.int("n"), a.int("total"), make(chan struct{})
	for i := range n {
		go func() {
			for {
				unlock, err := lock(i)
				if err != nil {
					continue
				}
				mu.Lock()
				if order = append(order, i); len(order) == total {
					close(over)
				}
				enough := len(order) >= total
				mu.Unlock()
				unlock()
				if enough {
					return
				}
			}
		}()
	}
	o.say(call, "started")
	<-over
	counts := make([]int, n)
	mu.Lock()
	defer mu.Unlock()
	for _, i := range order[:total] {
		counts[i]++
	}
	o.say(call, "turns", strings.Trim(fmt.Sprint(counts), "[]"))
	return nil
}

func (g *goClients) wrong(call string, a args) error {
	ctx := context.Background()
	var err error
	switch a.Get("case") {
	case "URL":
		_, err = distlock.Open(ctx, a.Get("url"), nil)
	case "no name":
		_, err = g.client(a).Mutex("").Lock(ctx)
	case "ttl of nothing":
		_, err = g.client(a).Mutex("wrong", distlock.WithTTL(0)).Lock(ctx)
	default:
		err = fmt.Errorf("no case %s", a.Get("case"))
	}
	if err == nil {
		g.say(call, "accepted")
	}
	return err
}
