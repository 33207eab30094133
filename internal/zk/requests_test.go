package zk

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

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
	if _, _, err := c.Create(ctx, path, nil, Ephemeral); !errors.Is(err, ErrNodeExists) {
		t.Errorf("create again: %v", err)
	}
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
	if err := c.Sync(ctx, dir); err != nil {
		t.Errorf("sync: %v", err)
	}
	if err := c.Delete(ctx, path, -1); err != nil {
		t.Errorf("delete: %v", err)
	}
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
		"get nothing":       {second(c.Get(ctx, dir+"/none")), ErrNoNode},
		"children of none":  {second(c.Children(ctx, dir+"/none")), ErrNoNode},
		"delete nothing":    {c.Delete(ctx, dir+"/none", -1), ErrNoNode},
		"delete a parent":   {c.Delete(ctx, dir, -1), ErrNotEmpty},
		"delete by version": {c.Delete(ctx, dir+"/e", 7), ErrBadVersion},
		"set by version":    {first(c.Set(ctx, dir+"/e", nil, 7)), ErrBadVersion},
		"below ephemeral":   {second(c.Create(ctx, dir+"/e/x", nil, Persistent)), ErrNoChildren},
		"no slash":          {second(c.Get(ctx, "x")), errPath},
	}
	for name, a := range ask {
		if !errors.Is(a.err, a.want) {
			t.Errorf("%s: %v, want %v", name, a.err, a.want)
		}
	}
	want := `zk: delete "` + dir + `/none": no such node`
	if err := c.Delete(ctx, dir+"/none", -1); err.Error() != want {
		t.Errorf("the error says %q, want %q", err, want)
	}
}

func first[A any](_ A, err error) error { return err }

func second[A, B any](_ A, _ B, err error) error { return err }

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
	c := dial(t, Config{Servers: []string{srv.Addr()}, Timeout: 20 * time.Second})
	ctx, root := t.Context(), place(t, c)
	e, err := c.CreateAndList(ctx, root+"/x-", nil)
	if err != nil {
		t.Fatal(err)
	}
	names, _, err := c.SyncAndList(ctx, root)
	if err != nil || !slices.Equal(names, e.Children) {
		t.Errorf("%q, %v, want %q", names, err, e.Children)
	}
	if _, _, err := c.SyncAndList(ctx, root+"/none"); !errors.Is(err, ErrNoNode) {
		t.Errorf("a list of a missing node: %v", err)
	}
	set, names, err := c.SetAndList(ctx, e.Path, []byte("data"), 0, root)
	if err != nil || set.Version != 1 || !slices.Equal(names, e.Children) {
		t.Errorf("%+v, %q, %v", set, names, err)
	}
	if set, _, err := c.SetAndList(ctx, e.Path, nil, 0, root); !errors.Is(err, ErrBadVersion) || set.Mzxid != 0 {
		t.Errorf("with the wrong version: %+v, %v", set, err)
	}
	if set, _, err := c.SetAndList(ctx, e.Path, nil, 1, root+"/none"); !errors.Is(err, ErrNoNode) || set.Mzxid == 0 {
		t.Errorf("a list of a missing node: %+v, %v", set, err)
	}
}

func TestCheckAll(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedZooKeeper(t)
	c := dial(t, Config{Servers: []string{srv.Addr()}, Timeout: 20 * time.Second})
	var paths []string
	for range 300 {
		path, _, err := c.Create(t.Context(), "/check-", nil, EphemeralSequential)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	before := c.Deadline()
	time.Sleep(time.Millisecond)
	if missing, err := c.CheckAll(t.Context(), paths); missing != -1 || err != nil {
		t.Errorf("all exist: %d, %v", missing, err)
	}
	if c.Deadline().Before(before) {
		t.Error("the deadline went back")
	}
	for _, gone := range []int{200, 100, 0} {
		if err := c.Delete(t.Context(), paths[gone], -1); err != nil {
			t.Fatal(err)
		}
		if missing, err := c.CheckAll(t.Context(), paths); missing != gone || err != nil {
			t.Errorf("number %d is missing: %d, %v", gone, missing, err)
		}
	}
	if missing, err := c.CheckAll(t.Context(), nil); missing != -1 || err != nil {
		t.Errorf("no paths: %d, %v", missing, err)
	}
}

func TestReplace(t *testing.T) {
	t.Parallel()
	c := shared(t)
	dir := place(t, c)
	node(t, c, dir+"/old")
	if err := c.Replace(t.Context(), dir+"/old", dir+"/new", []byte("data")); err != nil {
		t.Fatal(err)
	}
	data, stat, err := c.Get(t.Context(), dir+"/new")
	if err != nil || string(data) != "data" || stat.EphemeralOwner != c.Session() {
		t.Errorf("the new node: %q, %+v, %v", data, stat, err)
	}
	// Both or neither.
	if err := c.Replace(t.Context(), dir+"/old", dir+"/newer", nil); !errors.Is(err, ErrNoNode) {
		t.Errorf("without the old one: %v", err)
	}
	node(t, c, dir+"/other")
	if err := c.Replace(t.Context(), dir+"/other", dir+"/new", nil); !errors.Is(err, ErrNodeExists) {
		t.Errorf("beside the new one: %v", err)
	}
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
