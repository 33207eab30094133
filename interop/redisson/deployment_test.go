package redisson

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	_ "github.com/distlock/distlock/backend/quorum"
	_ "github.com/distlock/distlock/backend/redislock"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/interop"
	"github.com/redis/go-redis/v9"
)

// deployment is a Redis that both sides use.
type deployment struct {
	name, mode string // as Java knows it
	addrs      []string
	prefix     string
	url        string // as Go knows it
	fan        int    // how many servers one attempt of Go asks
	masters    func(context.Context, func(context.Context, *redis.Client) error) error
}

// single is one server.
func single(t *testing.T) *deployment {
	srv := testserver.SharedRedis(t)
	return &deployment{
		name: "single", mode: "single", addrs: []string{srv.Addr()},
		url: srv.URL() + "?layout=redisson", fan: 1, masters: eachOf(t, srv.Addr()),
	}
}

// members is how many servers keep a lock by majority.
const members = 3

// byMajority is some servers that know nothing of each other: RedissonRedLock there, and
// the backend quorum here.
func byMajority(t *testing.T) (*deployment, []*testserver.RedisServer) {
	d := &deployment{name: "red", mode: "red", fan: members}
	var servers []*testserver.RedisServer
	for range members {
		srv := testserver.Redis(t)
		servers, d.addrs = append(servers, srv), append(d.addrs, srv.Addr())
	}
	t.Cleanup(func() { disconnectAll(t, d.addrs) })
	d.url = "quorum+redis://" + strings.Join(d.addrs, ",") + "?layout=redisson"
	d.masters = eachOf(t, d.addrs...)
	return d, servers
}

// eachOf calls a function with a client of each server.
func eachOf(t *testing.T, addrs ...string) func(context.Context, func(context.Context, *redis.Client) error) error {
	var clients []*redis.Client
	for _, addr := range addrs {
		c := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { c.Close() })
		clients = append(clients, c)
	}
	return func(ctx context.Context, f func(context.Context, *redis.Client) error) error {
		for _, c := range clients {
			if err := f(ctx, c); err != nil {
				return err
			}
		}
		return nil
	}
}

// keys are all keys whose name contains part, without its prefix.
func (d *deployment) keys(t *testing.T, part string) []string {
	t.Helper()
	var mu sync.Mutex
	var keys []string
	err := d.masters(t.Context(), func(ctx context.Context, c *redis.Client) error {
		more, err := c.Keys(ctx, "*"+part+"*").Result()
		mu.Lock()
		defer mu.Unlock()
		keys = append(keys, more...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(keys)
	return keys
}

// leaves expects that a name has these keys and no others. Java deletes the latch
// of an unlock when it has answered.
func (d *deployment) leaves(t *testing.T, name string, want ...string) {
	t.Helper()
	slices.Sort(want)
	var got []string
	interop.Eventually(t, func() string { return fmt.Sprintf("keys %q, want %q", got, want) }, func() bool {
		got = d.keys(t, name)
		return slices.Equal(got, want)
	})
}

// attempts counts the scripts that the servers have run.
func (d *deployment) attempts(t *testing.T) int {
	t.Helper()
	var total atomic.Int64
	err := d.masters(t.Context(), func(ctx context.Context, c *redis.Client) error {
		info, err := c.Info(ctx, "commandstats").Result()
		for line := range strings.Lines(info) {
			calls := 0
			if n, _ := fmt.Sscanf(line, "cmdstat_evalsha:calls=%d", &calls); n == 1 {
				total.Add(int64(calls))
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return int(total.Load())
}

// waits returns when so many waiters have been refused, have subscribed, and have been
// refused again since before: they have nothing left to do but wait.
func (d *deployment) waits(t *testing.T, before, waiters int) {
	t.Helper()
	interop.Eventually(t, func() string { return "there are no waiters" }, func() bool { return d.attempts(t) >= before+2*waiters })
}
