package zk

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testserver"
)

// dial opens a session that ends with the test.
func dial(t testing.TB, cfg Config) *Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := Dial(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		c.Close(ctx)
	})
	return c
}

func TestSmoke(t *testing.T) {
	srv := testserver.SharedZooKeeper(t)
	c := dial(t, Config{Servers: []string{srv.Addr()}, Timeout: 2 * time.Second})
	ctx := t.Context()
	p, st, err := c.Create(ctx, "/smoke", nil, Container)
	t.Log(p, st, err)
	e, err := c.CreateAndList(ctx, "/smoke/x-", []byte("hi"))
	t.Logf("%+v %v", e, err)
	if err != nil || !slices.Contains(e.Children, "x-0000000000") || e.Stat.EphemeralOwner != c.Session() {
		t.Fatal()
	}
	got := make(chan Event, 1)
	d, st, w, err := c.GetW(ctx, e.Path, func(e Event) { got <- e })
	t.Log(d, st, w, err)
	if err := c.Delete(ctx, e.Path, -1); err != nil {
		t.Fatal(err)
	}
	t.Log(<-got)
	if _, _, err := c.Get(ctx, e.Path); !errors.Is(err, ErrNoNode) {
		t.Fatal(err)
	}
	d0 := c.Deadline()
	for range 30 {
		time.Sleep(100 * time.Millisecond)
		t.Log(time.Until(c.Deadline()), c.Deadline().Sub(d0))
	}
	t.Log(srv.Ask("cons"))
}
