// Package rights tries the rights that the documentation gives a user of a backend: they must be enough for all
// that a backend does, and none may be too much.
package rights

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
)

// Example returns the lines of a page of docs/backends, among those that are indented by four spaces, which begin
// with start. A comment of SQL behind them is cut off.
func Example(tb testing.TB, page, start string) (lines []string) {
	tb.Helper()
	for _, line := range strings.Split(Page(tb, page), "\n") {
		if code, ok := strings.CutPrefix(line, "    "); ok && strings.HasPrefix(code, start) {
			code, _, _ = strings.Cut(code, " -- ")
			lines = append(lines, strings.TrimSpace(code))
		}
	}
	if len(lines) == 0 {
		tb.Fatalf("docs/backends/%s has no example that begins with %q", page, start)
	}
	return lines
}

// Page returns the text of a page of docs/backends.
func Page(tb testing.TB, page string) string {
	tb.Helper()
	_, here, _, _ := runtime.Caller(0)
	text, err := os.ReadFile(filepath.Join(filepath.Dir(here), "../../../docs/backends", page))
	if err != nil {
		tb.Fatal(err)
	}
	return string(text)
}

// Try makes the tour as a user with all rights, and then without each one of them. user makes a user who has the
// rights, and returns that user's URL.
func Try(t *testing.T, all []string, user func(t *testing.T, rights []string) (url string)) {
	t.Helper()
	Suffice(t, all, user)
	for i, right := range all {
		err := Tour(context.Background(), user(t, slices.Delete(slices.Clone(all), i, i+1)))
		if err == nil {
			t.Errorf("nothing needs the right %q", right)
		} else {
			t.Logf("without %q: %v", right, err)
		}
	}
}

// Suffice makes the tour as a user with all rights. It fails if that never succeeds: on a busy machine a tour may use
// what only long waits need.
func Suffice(t *testing.T, all []string, user func(t *testing.T, rights []string) (url string)) {
	t.Helper()
	var err error
	for range 4 {
		if err = Tour(context.Background(), user(t, all)); err == nil {
			return
		}
	}
	t.Errorf("with the rights %q: %v", all, err)
}

// patience bounds how long a tour waits for news.
const patience = time.Minute

// Tour does at the backend of a URL what its users do, each by two connections, and returns what fails first.
func Tour(ctx context.Context, url string) error {
	t := &tour{ctx: ctx}
	for _, b := range []*driver.Backend{&t.a, &t.b} {
		var err error
		if *b, err = driver.Open(ctx, url); err != nil {
			return fmt.Errorf("open: %w", err)
		}
		defer (*b).Close()
	}
	// A name with braces has other keys in Redis.
	for _, name := range []string{"tour " + driver.NewOwner(), "{tour} " + driver.NewOwner()} {
		t.name = name
		for _, step := range []func(){t.exclusive, t.shared, t.counted, t.asked} {
			step()
		}
	}
	return t.err
}

type tour struct {
	ctx  context.Context
	a, b driver.Backend
	name string
	err  error // what failed first; nothing is done after it
}

func (t *tour) fail(what string, err error) {
	if t.err == nil {
		t.err = fmt.Errorf("%s: %w", what, err)
	}
}

func (t *tour) request(kind string, mode driver.Mode) driver.Request {
	r := driver.Request{
		Hold:   driver.Hold{Name: t.name + kind, Owner: driver.NewOwner(), Mode: mode, TTL: 2 * time.Minute},
		Fences: 1, Meta: map[string]string{"program": "tour"},
	}
	if mode == driver.Counted {
		r.Limit = 2
	}
	return r
}

func (t *tour) has(mode driver.Mode) bool { return t.err == nil && t.a.Caps().Modes.Has(mode) }

func (t *tour) acquire(b driver.Backend, r driver.Request) {
	if t.err != nil {
		return
	}
	if _, err := b.Acquire(t.ctx, r); err != nil {
		t.fail("acquire "+r.Mode.String(), err)
	}
}

func (t *tour) refused(b driver.Backend, r driver.Request) {
	if t.err != nil {
		return
	}
	if _, err := b.Acquire(t.ctx, r); !errors.Is(err, driver.ErrHeld) {
		t.fail("a second "+r.Mode.String(), errors.Join(err, errors.New("want a refusal")))
	}
}

func (t *tour) release(b driver.Backend, h driver.Hold) {
	if t.err != nil {
		return
	}
	if err := b.Release(t.ctx, h); err != nil {
		t.fail("release "+h.Mode.String(), err)
	}
}

// exclusive locks, waits in the queue, renews, looks, releases, is woken, and breaks.
func (t *tour) exclusive() {
	if !t.has(driver.Exclusive) {
		return
	}
	first, second := t.request("", driver.Exclusive), t.request("", driver.Exclusive)
	second.Queue = t.a.Caps().QueueingOf(driver.Exclusive) != driver.QueueNever
	t.acquire(t.a, first)
	t.tells(t.request(" again", driver.Exclusive))
	t.refused(t.b, second)
	t.wait(second, func() {
		if errs := t.a.Renew(t.ctx, []driver.Hold{first.Hold}); errs[0] != nil {
			t.fail("renew", errs[0])
		}
		t.release(t.a, first.Hold)
	})
	t.breaks(second)
}

// tells wants others to be told a fence before a renewal, if they are behind it.
func (t *tour) tells(r driver.Request) {
	i, inspects := t.b.(driver.Inspector)
	g, err := t.a.Acquire(t.ctx, r)
	if err != nil || !inspects {
		t.release(t.a, r.Hold)
		return
	}
	r.Fence = g.Last()
	known := func() bool {
		info, err := i.Inspect(t.ctx, r.Name)
		return err == nil && len(info.Holders) == 1 && info.Holders[0].Fence > 0
	}
	before := known()
	if t.a.Renew(t.ctx, []driver.Hold{r.Hold}); known() && !before {
		t.fail("inspect", errors.New("no fence before a renewal"))
	}
	t.release(t.a, r.Hold)
}

// wait watches a lock, lets free free it, and acquires it when it is woken.
func (t *tour) wait(r driver.Request, free func()) {
	w, watches := t.b.(driver.Watcher)
	if t.err != nil {
		return
	}
	if !watches {
		free()
		t.acquire(t.b, r)
		return
	}
	watch, err := w.Watch(t.ctx, r)
	if err == driver.ErrSkip { // not for want of a right, which would be in the error
		free()
		t.acquire(t.b, r)
		return
	}
	if err != nil {
		t.fail("watch", err)
		return
	}
	defer watch.Close()
	free()
	late := time.After(patience)
	for t.err == nil {
		select {
		case <-watch.Ready:
		case <-late:
			t.fail("watch", errors.New("a release wakes nobody"))
		}
		if _, err := t.b.Acquire(t.ctx, r); err == nil {
			return
		} else if !errors.Is(err, driver.ErrHeld) {
			t.fail("acquire after a wait", err)
		}
	}
}

// breaks finds a hold in the list, looks at it, and ends it as another client does. Its holder finds that out.
func (t *tour) breaks(r driver.Request) {
	i, inspects := t.a.(driver.Inspector)
	if t.err != nil {
		return
	}
	if !inspects {
		t.release(t.b, r.Hold)
		return
	}
	listed := false
	err := i.List(t.ctx, t.name, func(name string) bool { listed = listed || name == r.Name; return true })
	if errors.Is(err, driver.ErrUnsupported) || errors.Is(err, driver.ErrSkip) {
		t.release(t.b, r.Hold)
		return
	}
	if err != nil || !listed {
		t.fail("list", errors.Join(err, fmt.Errorf("the lock was listed: %v", listed)))
		return
	}
	info, err := i.Inspect(t.ctx, r.Name)
	if err != nil || len(info.Holders) != 1 || info.Holders[0].Owner != r.Owner {
		t.fail("inspect", errors.Join(err, fmt.Errorf("%d holders", len(info.Holders))))
		return
	}
	h := r.Hold
	h.Owner = info.Holders[0].Owner
	t.release(t.a, h)
	if t.err != nil {
		return
	}
	if err := t.b.Release(t.ctx, r.Hold); !errors.Is(err, driver.ErrLost) {
		t.fail("release of what another client has broken", errors.Join(err, errors.New("want that it is lost")))
	}
}

// shared makes a writer a reader beside another.
func (t *tour) shared() {
	if !t.has(driver.Write) {
		return
	}
	writer, reader := t.request(" rw", driver.Write), t.request(" rw", driver.Read)
	t.acquire(t.a, writer)
	t.refused(t.b, reader)
	if t.a.Caps().Downgrade {
		writer.Mode = driver.Read
		t.acquire(t.a, writer)
	} else {
		t.release(t.a, writer.Hold)
	}
	t.acquire(t.b, reader)
	if t.err == nil && t.a.Caps().Downgrade {
		t.renew(writer.Hold)
		t.release(t.a, writer.Hold)
	}
	t.breaks(reader)
}

func (t *tour) renew(h driver.Hold) {
	if errs := t.a.Renew(t.ctx, []driver.Hold{h}); errs[0] != nil {
		t.fail("renew "+h.Mode.String(), errs[0])
	}
}

// counted takes all permits, and waits for one.
func (t *tour) counted() {
	if !t.has(driver.Counted) {
		return
	}
	one, two, three := t.request(" sem", driver.Counted), t.request(" sem", driver.Counted), t.request(" sem", driver.Counted)
	t.acquire(t.a, one)
	t.acquire(t.b, two)
	t.refused(t.b, three)
	t.wait(three, func() { t.renew(one.Hold); t.release(t.a, one.Hold) })
	t.release(t.b, two.Hold)
	t.breaks(three)
}

// asked asks a holder for the lock.
func (t *tour) asked() {
	rev, revokes := t.b.(driver.Revoker)
	if !t.has(driver.Exclusive) || !revokes || !t.a.Caps().Revocable.Has(driver.Exclusive) {
		return
	}
	asked := make(chan struct{})
	r := t.request(" ask", driver.Exclusive)
	r.OnRevoke = func() { close(asked) }
	t.acquire(t.a, r)
	if t.err != nil {
		return
	}
	if err := rev.Revoke(t.ctx, r.Hold); err != nil {
		t.fail("revoke", err)
		return
	}
	select {
	case <-asked:
	case <-time.After(patience):
		t.fail("revoke", errors.New("the holder is not asked"))
	}
	t.release(t.a, r.Hold)
}

// Grants returns the statements of the example in which a strategy is named, each with one right: "GRANT SELECT ON t
// TO app".
func Grants(tb testing.TB, page, strategy string) (all []string) {
	tb.Helper()
	for _, line := range strings.Split(Page(tb, page), "\n") {
		statement, what, _ := strings.Cut(strings.TrimSpace(line), "-- strategy ")
		rights, rest, ok := strings.Cut(strings.TrimRight(strings.TrimSpace(statement), ";"), " ON ")
		if rights, ok2 := strings.CutPrefix(rights, "GRANT "); ok && ok2 && what == strategy {
			for _, right := range strings.Split(rights, ", ") {
				all = append(all, right+" ON "+rest)
			}
		}
	}
	if len(all) == 0 {
		tb.Fatalf("docs/backends/%s has no GRANT for strategy %s", page, strategy)
	}
	return all
}
