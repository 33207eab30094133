package zk

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/testserver"
)

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
		t.Errorf("a list of what is not there: %v", err)
	}
	set, names, err := c.SetAndList(ctx, e.Path, []byte("data"), 0, root)
	if err != nil || set.Version != 1 || !slices.Equal(names, e.Children) {
		t.Errorf("%+v, %q, %v", set, names, err)
	}
	if set, _, err := c.SetAndList(ctx, e.Path, nil, 0, root); !errors.Is(err, ErrBadVersion) || set.Mzxid != 0 {
		t.Errorf("with the wrong version: %+v, %v", set, err)
	}
	if set, _, err := c.SetAndList(ctx, e.Path, nil, 1, root+"/none"); !errors.Is(err, ErrNoNode) || set.Mzxid == 0 {
		t.Errorf("a list of what is not there: %+v, %v", set, err)
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
		t.Errorf("all are there: %d, %v", missing, err)
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
		t.Errorf("of nothing: %d, %v", missing, err)
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
