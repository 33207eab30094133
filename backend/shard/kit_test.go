package shard_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/backend/shard"
	"github.com/distlock/distlock/driver"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if left := leftBehind(); left != "" && code == 0 {
		fmt.Println("goroutines left behind:\n" + left)
		code = 1
	}
	os.Exit(code)
}

// leftBehind waits for goroutines to end, and returns the remaining ones.
func leftBehind() string {
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		buf := make([]byte, 1<<20)
		var left []string
		for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(g, "distlock/backend") && !strings.Contains(g, "TestMain") {
				left = append(left, g)
			}
		}
		if len(left) == 0 || time.Now().After(end) {
			return strings.Join(left, "\n\n")
		}
	}
}

var errDown = errors.New("connection refused")

// cluster has some stores and the connections to them.
type cluster struct {
	t      testing.TB
	stores map[string]*memlock.Store
	fixed  bool // a hold's TTL can't become longer
}

func newCluster(t testing.TB, names ...string) *cluster {
	c := &cluster{t: t, stores: map[string]*memlock.Store{}}
	for _, name := range names {
		c.stores[name] = memlock.NewStore()
	}
	return c
}

// wire is one process's connection to one member.
type wire struct {
	*memlock.Backend
	mu    sync.Mutex
	down  bool                     // calls fail
	hangs bool                     // calls have no answer
	gone  error                    // returned by calls, which are not sent; nil: they are sent
	fixed map[string]time.Duration // TTLs by Owner, beyond which Renew can't go, as in a session; nil: it can
	other *memlock.Backend         // replaces the member after it lost its memory

	spends int             // so many attempts release their Owners
	spent  map[string]bool // these Owners
}

// spend makes the next attempts release their Owners.
func (w *wire) spend(attempts int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.spends, w.spent = attempts, map[string]bool{}
}

// spendOne returns an error if an attempt releases its Owner, or repeats one that was released.
func (w *wire) spendOne(owner string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.spent[owner]:
		return fmt.Errorf("%w: the Owner was released", driver.ErrInvalid)
	case w.spends > 0:
		w.spends--
		w.spent[owner] = true
		return driver.Spent(errDown)
	}
	return nil
}

// replace makes the member lose its memory.
func (w *wire) replace(s *memlock.Store) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.other = s.Connect()
}

func (w *wire) to() *memlock.Backend {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.other != nil {
		return w.other
	}
	return w.Backend
}

func (w *wire) set(down, hangs bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down, w.hangs = down, hangs
}

// refuse makes all calls fail unsent.
func (w *wire) refuse() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone = driver.Unsent(errDown)
}

func (w *wire) pass(ctx context.Context) error {
	w.mu.Lock()
	down, hangs, gone := w.down, w.hangs, w.gone
	w.mu.Unlock()
	switch {
	case gone != nil:
		return gone
	case down:
		return errDown
	case hangs:
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (w *wire) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := w.pass(ctx); err != nil {
		return driver.Grant{}, err
	}
	if err := w.spendOne(r.Owner); err != nil {
		return driver.Grant{}, err
	}
	g, err := w.to().Acquire(ctx, r)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil && w.fixed != nil {
		w.fixed[r.Owner] = r.TTL
	}
	return g, err
}

func (w *wire) Renew(ctx context.Context, holds []driver.Hold) []error {
	if err := w.pass(ctx); err != nil {
		errs := make([]error, len(holds))
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	for _, h := range holds {
		if life, is := w.life(h.Owner); is && h.TTL > life {
			return slices.Repeat([]error{driver.ErrUnsupported}, len(holds))
		}
	}
	return w.to().Renew(ctx, holds)
}

// life returns the TTL of a hold, where it can't change.
func (w *wire) life(owner string) (time.Duration, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	d, is := w.fixed[owner]
	return d, is
}

func (w *wire) Release(ctx context.Context, h driver.Hold) error {
	if err := w.pass(ctx); err != nil {
		return err
	}
	return w.to().Release(ctx, h)
}

func (w *wire) Inspect(ctx context.Context, name string) (driver.Info, error) {
	if err := w.pass(ctx); err != nil {
		return driver.Info{}, err
	}
	return w.to().Inspect(ctx, name)
}

func (w *wire) List(ctx context.Context, prefix string, yield func(string) bool) error {
	if err := w.pass(ctx); err != nil {
		return err
	}
	return w.to().List(ctx, prefix, yield)
}

// process is a backend with its own connections.
type process struct {
	*shard.Backend
	wires map[string]*wire
}

// open makes a process with a list such as "a b +c -d": c joins, and d leaves.
func (c *cluster) open(list string) (*process, error) {
	return c.openCut(list, "")
}

// openCut is like open, with members that are down.
func (c *cluster) openCut(list, down string) (*process, error) {
	p := &process{wires: map[string]*wire{}}
	var members []shard.Member
	for _, word := range strings.Fields(list) {
		name := strings.TrimLeft(word, "+-")
		w := &wire{Backend: c.stores[name].Connect(), down: strings.Contains(down, name)}
		if c.fixed {
			w.fixed = map[string]time.Duration{}
		}
		p.wires[name] = w
		m := shard.Member{Name: name, Backend: w}
		switch word[0] {
		case '+':
			m.State = shard.Joining
		case '-':
			m.State = shard.Leaving
		}
		members = append(members, m)
	}
	var err error
	p.Backend, err = shard.New(c.t.Context(), members, nil)
	if err == nil {
		c.t.Cleanup(func() { p.Close() })
	}
	return p, err
}

func (c *cluster) process(list string) *process {
	c.t.Helper()
	p, err := c.open(list)
	if err != nil {
		c.t.Fatalf("%s: %v", list, err)
	}
	return p
}

// refused checks that a list is refused because another one is in use.
func (c *cluster) refused(list, other string) {
	c.t.Helper()
	p, err := c.open(list)
	if err == nil {
		p.Close()
		c.t.Fatalf("%s was accepted beside %s", list, other)
	}
	mine := strings.ReplaceAll(list, " ", ",")
	if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "list is "+mine) || !strings.Contains(err.Error(), "the list "+other) {
		c.t.Fatalf("%s: %v", list, err)
	}
}

func request(name string) driver.Request {
	return driver.Request{
		Hold:   driver.Hold{Name: name, Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: 30 * time.Second},
		Fences: 1,
	}
}

// at returns a name that a list's hashing gives to a member.
func at(t testing.TB, member string, list ...string) string {
	o, err := shard.NewRouter("", list...)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; ; i++ {
		if name := fmt.Sprintf("name%d", i); o.Of(name) == member {
			return name
		}
	}
}

func take(t testing.TB, b driver.Backend, r driver.Request) driver.Grant {
	t.Helper()
	g, err := b.Acquire(t.Context(), r)
	if err != nil {
		t.Fatalf("%s: %v", r.Name, err)
	}
	return g
}
