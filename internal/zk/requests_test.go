package zk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestNodesAreMadeReadChangedAndDeleted(t *testing.T) {
	t.Parallel()
	c, ctx := shared(t), soon(t)
	dir := place(t, c)
	path, made, err := c.Create(ctx, dir+"/a", []byte("one"), Persistent)
	if path != dir+"/a" || err != nil || made.Czxid == 0 || made.EphemeralOwner != 0 {
		t.Fatalf("create: %q, %+v, %v", path, made, err)
	}
	expect.Be(t, expect.Err2(c.Create(ctx, path, nil, Ephemeral)), ErrNodeExists, "create again")
	changed, err := c.Set(ctx, path, []byte("two"), 0)
	if err != nil || changed.Version != 1 {
		t.Errorf("set: %+v, %v", changed, err)
	}
	data, stat, err := c.Get(ctx, path)
	if string(data) != "two" || stat != changed || err != nil {
		t.Errorf("get: %q, %+v, %v; want %+v", data, stat, err, changed)
	}
	names, stat, err := c.Children(ctx, dir)
	if !slices.Equal(names, []string{"a"}) || stat.NumChildren != 1 || err != nil {
		t.Errorf("children: %q, %+v, %v", names, stat, err)
	}
	expect.OK(t, c.Commit(ctx), "commit")
	expect.OK(t, c.Delete(ctx, path, -1), "delete")
}

func TestServersErrorsSayWhatIsWrong(t *testing.T) {
	t.Parallel()
	c, ctx := shared(t), soon(t)
	dir := place(t, c)
	node(t, c, dir+"/e")
	ask := map[string]struct {
		err  error
		want error
	}{
		"get nothing":       {expect.Err2(c.Get(ctx, dir+"/none")), ErrNoNode},
		"children of none":  {expect.Err2(c.Children(ctx, dir+"/none")), ErrNoNode},
		"delete nothing":    {c.Delete(ctx, dir+"/none", -1), ErrNoNode},
		"delete a parent":   {c.Delete(ctx, dir, -1), ErrNotEmpty},
		"delete by version": {c.Delete(ctx, dir+"/e", 7), ErrBadVersion},
		"set by version":    {expect.Err(c.Set(ctx, dir+"/e", nil, 7)), ErrBadVersion},
		"below ephemeral":   {expect.Err2(c.Create(ctx, dir+"/e/x", nil, Persistent)), ErrNoChildren},
		"no slash":          {expect.Err2(c.Get(ctx, "x")), errPath},
	}
	for name, a := range ask {
		expect.Be(t, a.err, a.want, name)
	}
	want := `zk: delete "` + dir + `/none": no such node`
	if err := c.Delete(ctx, dir+"/none", -1); err.Error() != want {
		t.Errorf("the error says %q, want %q", err, want)
	}
}

func TestCreateAndListIncludesTheNode(t *testing.T) {
	t.Parallel()
	c, ctx := shared(t), soon(t)
	dir := place(t, c)
	for want := 1; want <= 3; want++ {
		e, err := c.CreateAndList(ctx, dir+"/n-", []byte("me"))
		if err != nil || e.Stat.EphemeralOwner != c.Session() || int(e.Parent.NumChildren) != want {
			t.Fatalf("%+v, %v", e, err)
		}
		if !slices.Contains(e.Children, strings.TrimPrefix(e.Path, dir+"/")) || len(e.Children) != want {
			t.Errorf("%s is not in %q", e.Path, e.Children)
		}
	}
	if e, err := c.CreateAndList(ctx, dir+"/none/n-", nil); !errors.Is(err, ErrNoNode) || e.Path != "" {
		t.Errorf("below nothing: %+v, %v", e, err)
	}
}

func TestGetAll(t *testing.T) {
	t.Parallel()
	c, ctx := shared(t), soon(t)
	dir := place(t, c)
	node(t, c, dir+"/a")
	nodes, err := c.GetAll(ctx, []string{dir + "/a", dir + "/b"})
	if err != nil || nodes[0].Err != nil || nodes[0].Stat.EphemeralOwner != c.Session() || !errors.Is(nodes[1].Err, ErrNoNode) {
		t.Errorf("%+v, %v", nodes, err)
	}
	if nodes, err := c.GetAll(ctx, nil); len(nodes) > 0 || err != nil {
		t.Errorf("no paths: %+v, %v", nodes, err)
	}
}

func TestPairs(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedZooKeeper(t)
	c := dial(t, Config{Servers: []string{srv.Addr()}, Timeout: long})
	ctx, root := t.Context(), place(t, c)
	e := must.Get(c.CreateAndList(ctx, root+"/x-", nil))(t)
	names, _, err := c.CommitAndList(ctx, root)
	if err != nil || !slices.Equal(names, e.Children) {
		t.Errorf("behind a write: %q, %v, want %q", names, err, e.Children)
	}
	expect.Be(t, expect.Err2(c.CommitAndList(ctx, root+"/none")), ErrNoNode, "behind a write, a list of a missing node")
}

// A leader that is cut off answers a read, but commits nothing.
func TestNoListFromAServerWithoutAMajority(t *testing.T) {
	t.Parallel()
	var cutOff atomic.Bool
	addr := startFake(t, &fake{answer: func(_ int, _ int32, o opcode) message {
		switch {
		case o == opMulti && cutOff.Load():
			return message{raw: []byte{}}
		case o == opGetChildren2:
			return message{body: append(appendTexts(nil, nil), make([]byte, 68)...)}
		}
		return good(o)
	}})
	c := dial(t, Config{Servers: []string{addr}, Timeout: 20 * time.Second})
	must.OK(t, expect.Err2(c.CommitAndList(soon(t), "/x")))
	cutOff.Store(true)
	must.OK(t, expect.Err2(c.Children(soon(t), "/x")))
	if names, _, err := c.CommitAndList(soon(t), "/x"); err == nil {
		t.Errorf("a list %q without an agreement", names)
	}
}

func TestCheckAll(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedZooKeeper(t)
	c := dial(t, Config{Servers: []string{srv.Addr()}, Timeout: long})
	var paths []string
	for range 300 {
		path, _, err := c.Create(t.Context(), "/check-", nil, EphemeralSequential)
		must.OK(t, err)
		paths = append(paths, path)
	}
	before := c.Deadline()
	time.Sleep(time.Millisecond)
	if failed, err := c.CheckAll(t.Context(), paths); failed != -1 || err != nil {
		t.Errorf("all exist: %d, %v", failed, err)
	}
	if c.Deadline().Before(before) {
		t.Error("the deadline went back")
	}
	for _, gone := range []int{200, 100, 0} {
		must.OK(t, c.Delete(t.Context(), paths[gone], -1))
		if failed, err := c.CheckAll(t.Context(), paths); failed != gone || !errors.Is(err, ErrNoNode) {
			t.Errorf("number %d is missing: %d, %v", gone, failed, err)
		}
	}
	if failed, err := c.CheckAll(t.Context(), nil); failed != -1 || err != nil {
		t.Errorf("no paths: %d, %v", failed, err)
	}
}

func TestCreateContainer(t *testing.T) {
	t.Parallel()
	c := shared(t)
	dir := place(t, c)
	expect.Be(t, c.CreateContainer(t.Context(), dir+"/a/b"), ErrNoNode, "below a node that doesn't exist")
	must.OK(t, c.CreateContainer(t.Context(), dir+"/a"))
	expect.Be(t, c.CreateContainer(t.Context(), dir+"/a"), ErrNodeExists, "once more")
	// Servers delete containers that are empty and had a child: their children were changed.
	names, stat, err := c.Children(t.Context(), dir+"/a")
	if err != nil || len(names) > 0 || stat.Cversion == 0 {
		t.Errorf("%q, %+v, %v; want an empty container that the servers delete", names, stat, err)
	}
}

func TestReplace(t *testing.T) {
	t.Parallel()
	c := shared(t)
	dir := place(t, c)
	node(t, c, dir+"/old")
	must.OK(t, c.Replace(t.Context(), dir+"/old", 0, dir+"/new", []byte("data")))
	data, stat, err := c.Get(t.Context(), dir+"/new")
	if err != nil || string(data) != "data" || stat.EphemeralOwner != c.Session() {
		t.Errorf("the new node: %q, %+v, %v", data, stat, err)
	}
	// Both or neither.
	expect.Be(t, c.Replace(t.Context(), dir+"/old", 0, dir+"/newer", nil), ErrNoNode, "without the old one")
	node(t, c, dir+"/other")
	expect.Be(t, c.Replace(t.Context(), dir+"/other", 7, dir+"/newer", nil), ErrBadVersion, "another version of the old one")
	expect.Be(t, c.Replace(t.Context(), dir+"/other", 0, dir+"/new", nil), ErrNodeExists, "beside the new one")
	names, _, err := c.Children(t.Context(), dir)
	if slices.Sort(names); err != nil || !slices.Equal(names, []string{"new", "other"}) {
		t.Errorf("%q, %v", names, err)
	}
}

// BenchmarkPairs makes a node, lists its parent, and deletes it, as an uncontended lock does.
func BenchmarkPairs(b *testing.B) {
	for _, n := range []int{1, 16, 128} {
		b.Run(fmt.Sprint("goroutines=", n), func(b *testing.B) { benchmarkPairs(b, n) })
	}
}

func benchmarkPairs(b *testing.B, goroutines int) {
	c := dial(b, Config{Servers: []string{testserver.SharedZooKeeper(b).Addr()}, Timeout: long})
	b.ReportAllocs()
	var wg sync.WaitGroup
	turns := make(chan struct{}, goroutines)
	for range goroutines {
		dir := place(b, c)
		wg.Go(func() {
			for range turns {
				e, err := c.CreateAndList(b.Context(), dir+"/n-", nil)
				if err == nil {
					err = c.Delete(b.Context(), e.Path, -1)
				}
				if err != nil {
					b.Error(err)
				}
			}
		})
	}
	for b.Loop() {
		turns <- struct{}{}
	}
	close(turns)
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
}

// watchers returns how many watches the server has.
func watchers(t *testing.T, srv *testserver.ZooKeeperServer, path string) int {
	t.Helper()
	answer := must.Get(srv.Ask("wchp"))(t)
	return strings.Count(answer, path+"\n")
}

func watchData(t *testing.T, c *Conn, path string) (*Watch, chan Event) {
	t.Helper()
	events := make(chan Event, 4)
	_, _, w, err := c.GetW(soon(t), path, func(e Event) { events <- e })
	must.OK(t, err)
	return w, events
}

func TestWatchesNotifyOnce(t *testing.T) {
	t.Parallel()
	c, other := shared(t), shared(t)
	dir := place(t, other)
	node(t, other, dir+"/e")
	children := make(chan Event, 4)
	if _, _, _, err := c.ChildrenW(soon(t), dir, func(e Event) { children <- e }); err != nil {
		t.Fatal(err)
	}
	_, one := watchData(t, c, dir+"/e")
	_, two := watchData(t, c, dir+"/e")
	must.Get(other.Set(soon(t), dir+"/e", []byte("x"), -1))(t)
	for _, events := range []chan Event{one, two} {
		expect.Equal(t, receive(t, "the change", events), EventDataChanged, "event")
	}
	_, three := watchData(t, c, dir+"/e")
	must.OK(t, other.Delete(soon(t), dir+"/e", -1))
	expect.Equal(t, receive(t, "the end", three), EventDeleted, "event")
	expect.Equal(t, receive(t, "the list's change", children), EventChildrenChanged, "event")
	if err := c.Commit(soon(t)); err != nil || len(one)+len(two)+len(three)+len(children) > 0 {
		t.Errorf("notified again; %v", err)
	}
	if _, _, w, err := c.GetW(soon(t), dir+"/e", func(Event) {}); !errors.Is(err, ErrNoNode) || w != nil {
		t.Errorf("a watch on a missing node: %v, %v", w, err)
	}
}

func TestCancelRemovesTheServersWatch(t *testing.T) {
	t.Parallel()
	srv := testserver.ZooKeeper(t, testserver.ZooKeeperOptions{})
	c := at(t, srv.Addr())
	dir := place(t, c)
	one, first := watchData(t, c, dir)
	two, second := watchData(t, c, dir)
	one.Cancel()
	one.Cancel()
	if err := c.Commit(soon(t)); err != nil || watchers(t, srv, dir) != 1 {
		t.Errorf("the other's watch is gone too, or %v", err)
	}
	two.Cancel()
	if err := c.Commit(soon(t)); err != nil || watchers(t, srv, dir) != 0 {
		t.Errorf("the server's watch is still there, or %v", err)
	}
	if _, err := c.Set(soon(t), dir, nil, -1); err != nil || len(first)+len(second) > 0 {
		t.Errorf("a cancelled watch was notified, or %v", err)
	}
	if n := len(c.watches.entries); n > 0 {
		t.Errorf("%d entries are left", n)
	}
}

// A watch that is set while another is cancelled must survive that.
func TestWatchesComeAndGo(t *testing.T) {
	t.Parallel()
	c, other := shared(t), shared(t)
	dir := place(t, other)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 50 {
				w, events := watchData(t, c, dir)
				if i%2 == 0 {
					w.Cancel()
					continue
				}
				expect.OK(t, expect.Err(other.Set(soon(t), dir, nil, -1)))
				receive(t, "the change", events)
			}
		})
	}
	wg.Wait()
}

// An abandoned call may have set a watch.
func TestAbandonedWatchIsRemoved(t *testing.T) {
	t.Parallel()
	srv := testserver.ZooKeeper(t, testserver.ZooKeeperOptions{})
	c := at(t, srv.Addr())
	dir := place(t, c)
	for range 200 {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Microsecond)
		_, _, w, err := c.GetW(ctx, dir, func(Event) {})
		cancel()
		if err == nil {
			w.Cancel()
		}
	}
	eventually(t, "the server's watch is removed", func() bool { return watchers(t, srv, dir) == 0 })
}

func TestWatchesSurviveTheConnection(t *testing.T) {
	t.Parallel()
	c, p := behind(t, long)
	other := shared(t)
	dir := place(t, other)
	for _, name := range []string{"same", "changed", "deleted"} {
		node(t, other, dir+"/"+name)
	}
	_, same := watchData(t, c, dir+"/same")
	_, changed := watchData(t, c, dir+"/changed")
	_, deleted := watchData(t, c, dir+"/deleted")
	children := make(chan Event, 4)
	if _, _, _, err := c.ChildrenW(soon(t), dir, func(e Event) { children <- e }); err != nil {
		t.Fatal(err)
	}
	// Changes during a disconnection are reported afterwards.
	p.Silence()
	must.Get(other.Set(soon(t), dir+"/changed", nil, -1))(t)
	must.OK(t, other.Delete(soon(t), dir+"/deleted", -1))
	p.Pass()
	for want, events := range map[Event]chan Event{EventDataChanged: changed, EventDeleted: deleted, EventChildrenChanged: children} {
		expect.Equal(t, receive(t, "the change meanwhile", events), want, "event")
	}
	// Unchanged nodes are watched again.
	if len(same) > 0 {
		t.Errorf("told no paths: %+v", <-same)
	}
	must.OK(t, other.Delete(soon(t), dir+"/same", -1))
	expect.Equal(t, receive(t, "the later change", same), EventDeleted, "event")
}

// The watches don't fit into one request.
func TestManyWatchesSurviveTheConnection(t *testing.T) {
	t.Parallel()
	c, p := behind(t, long)
	c.cfg.MaxRequest = 4 << 10
	other := shared(t)
	dir := place(t, other)
	events := make(chan Event, 300)
	var nodes []string
	for i := range 300 {
		path := fmt.Sprintf("%s/%s%03d", dir, strings.Repeat("n", 50), i)
		node(t, other, path)
		nodes = append(nodes, path)
		if _, _, _, err := c.GetW(soon(t), path, func(e Event) { events <- e }); err != nil {
			t.Fatal(err)
		}
	}
	p.Cut()
	must.OK(t, c.Commit(soon(t)))
	for _, path := range nodes {
		must.OK(t, other.Delete(soon(t), path, -1))
	}
	for range nodes {
		receive(t, "a node's end", events)
	}
}

// A long path among short ones makes no request longer than the servers accept: they would close the
// connection, and each one after it.
func TestRequestsThatRenewWatchesFit(t *testing.T) {
	t.Parallel()
	c := newConn(Config{MaxRequest: 4 << 10})
	defer c.cancel()
	want := map[string]bool{"/" + strings.Repeat("long", 3<<10/4): true}
	for i := range 200 {
		want[fmt.Sprintf("/%s%03d", strings.Repeat("n", 50), i)] = true
	}
	for path := range want {
		c.watches.entry(watchKey{path, kindData}).watches = []*Watch{{}}
	}
	for range 20 { // in random order
		got := 0
		for _, q := range c.renewWatches() {
			if n := len(q.frame) - 4; n > c.cfg.MaxRequest {
				t.Errorf("a request of %d bytes", n)
			}
			for _, path := range (&decoder{b: q.frame[frameHead+8:]}).texts() {
				if want[path] {
					got++
				}
			}
		}
		expect.Equal(t, got, len(want), "paths are watched again")
	}
}
