package zk

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/testserver"
)

// watchers returns how many watches the server has.
func watchers(t *testing.T, srv *testserver.ZooKeeperServer, path string) int {
	t.Helper()
	answer, err := srv.Ask("wchp")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(answer, path+"\n")
}

func watchData(t *testing.T, c *Conn, path string) (*Watch, chan Event) {
	t.Helper()
	events := make(chan Event, 4)
	_, _, w, err := c.GetW(soon(t), path, func(e Event) { events <- e })
	if err != nil {
		t.Fatal(err)
	}
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
	if _, err := other.Set(soon(t), dir+"/e", []byte("x"), -1); err != nil {
		t.Fatal(err)
	}
	for _, events := range []chan Event{one, two} {
		if e := receive(t, "the change", events); e != EventDataChanged {
			t.Errorf("event %+v", e)
		}
	}
	_, three := watchData(t, c, dir+"/e")
	if err := other.Delete(soon(t), dir+"/e", -1); err != nil {
		t.Fatal(err)
	}
	if e := receive(t, "the end", three); e != EventDeleted {
		t.Errorf("event %+v", e)
	}
	if e := receive(t, "the list's change", children); e != EventChildrenChanged {
		t.Errorf("event %+v", e)
	}
	if err := c.Sync(soon(t), dir); err != nil || len(one)+len(two)+len(three)+len(children) > 0 {
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
	if err := c.Sync(soon(t), dir); err != nil || watchers(t, srv, dir) != 1 {
		t.Errorf("the other's watch is gone too, or %v", err)
	}
	two.Cancel()
	if err := c.Sync(soon(t), dir); err != nil || watchers(t, srv, dir) != 0 {
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
				if _, err := other.Set(soon(t), dir, nil, -1); err != nil {
					t.Error(err)
				}
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
	if _, err := other.Set(soon(t), dir+"/changed", nil, -1); err != nil {
		t.Fatal(err)
	}
	if err := other.Delete(soon(t), dir+"/deleted", -1); err != nil {
		t.Fatal(err)
	}
	p.Pass()
	for want, events := range map[Event]chan Event{EventDataChanged: changed, EventDeleted: deleted, EventChildrenChanged: children} {
		if e := receive(t, "the change meanwhile", events); e != want {
			t.Errorf("event %+v, want type %d", e, want)
		}
	}
	// Unchanged nodes are watched again.
	if len(same) > 0 {
		t.Errorf("told no paths: %+v", <-same)
	}
	if err := other.Delete(soon(t), dir+"/same", -1); err != nil {
		t.Fatal(err)
	}
	if e := receive(t, "the later change", same); e != EventDeleted {
		t.Errorf("event %+v", e)
	}
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
	if err := c.Sync(soon(t), dir); err != nil {
		t.Fatal(err)
	}
	for _, path := range nodes {
		if err := other.Delete(soon(t), path, -1); err != nil {
			t.Fatal(err)
		}
	}
	for range nodes {
		receive(t, "a node's end", events)
	}
}
