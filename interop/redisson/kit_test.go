// Package redisson proves that distlock and Redisson share locks: Go processes and
// JVMs with the real Redisson take turns on every kind of them, in one real Redis.
package redisson

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/distlock/distlock"
	_ "github.com/distlock/distlock/backend/quorum"
	_ "github.com/distlock/distlock/backend/redislock"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/interop"
)

// lease is the life of locks that are not meant to end by themselves.
const lease = 2 * time.Minute

// tokenOf is the key of a lock's token.
func tokenOf(name string) string {
	if !strings.Contains(name, "{") {
		name = "{" + name + "}"
	}
	return "redisson_lock_token:" + name
}

// kind is a kind of lock, as both sides know it.
type kind struct{ interop.Kind }

var (
	plain  = kind{interop.Kind{Java: "lock", Sharing: interop.Alone, Lock: interop.Mutex}}
	fenced = kind{interop.Kind{Java: "fenced", Sharing: interop.Alone, Lock: interop.Mutex}}
	fair   = kind{interop.Kind{Java: "fair", Sharing: interop.Alone, Lock: interop.Queue}}
	write  = kind{interop.Kind{Java: "write", Sharing: interop.Alone, Lock: interop.Writer}}
	read   = kind{interop.Kind{Java: "read", Sharing: interop.Reading, Lock: interop.Reader}}
	multi  = kind{interop.Kind{Java: "multi", Sharing: interop.Alone, Lock: interop.Several}}
	red    = kind{interop.Kind{Java: "red", Sharing: interop.Alone, Lock: interop.Mutex}}
)

// permit is a semaphore with a number of permits.
func permit(limit int) kind {
	return kind{interop.Kind{Java: "permit", Sharing: interop.Counted, Limit: limit, Lock: interop.Permit(limit)}}
}

// name is the name that both sides use for a lock of the kind: a multi-lock's has two.
func (k kind) name(base string) string {
	if k.Java == "multi" {
		return base + "-a," + base + "-b"
	}
	return base
}

// left are the keys that remain when the lock is not held any more.
func (k kind) left(base string) []string {
	switch k.Java {
	case "multi":
		return []string{tokenOf(base + "-a"), tokenOf(base + "-b")}
	case "permit":
		return []string{base, tokenOf(base)}
	case "red":
		return slices.Repeat([]string{tokenOf(base)}, members)
	}
	return []string{tokenOf(base)}
}

// javaLock is how a Java thread takes a lock.
func (k kind) javaLock(client, name string, life time.Duration) []string {
	if k.Java == "permit" {
		return []string{"acquire", client, name, interop.Millis(life)}
	}
	return []string{"lock", client, k.Java, name, interop.Millis(life)}
}

// javaUnlock is how it gives it back; reply is the answer to javaLock.
func (k kind) javaUnlock(client, name string, reply []string) []string {
	if k.Java == "permit" {
		return []string{"release", client, name, reply[1]}
	}
	return []string{"unlock", client, k.Java, name}
}

// prepare makes the semaphore, as the Java side must before its first use.
func (k kind) prepare(t *testing.T, th *interop.Thread, client, name string) {
	t.Helper()
	if k.Java == "permit" {
		th.Call("permits", client, name, strconv.Itoa(k.Limit)).Says(t, "true")
	}
}

func TestMain(m *testing.M) {
	interop.RunChild(act)
	os.Exit(testserver.Run(m))
}

// act is a Go process that holds a lock of every kind, or that is queued for a fair one, until it
// is killed.
func act(url, role, name string) error {
	ctx := context.Background()
	waits := make(chan struct{}, 1)
	c, err := distlock.Open(ctx, url, &distlock.Options{TTL: shortLife, Observer: &distlock.Observer{Waiting: func(distlock.Event) { waits <- struct{}{} }}})
	if err != nil {
		return err
	}
	if role == "waits" {
		go fair.Lock(c, name).Lock(ctx)
		<-waits
		return nil
	}
	for _, m := range mortals {
		if _, err := m.held.Lock(c, m.name(name)).Lock(ctx); err != nil {
			return err
		}
	}
	return nil
}

var jvms = &interop.JVMs{Class: "distlock.interop.RedissonPeer"}

// javaClient is the name of the process's client of a deployment; or the names of those
// of independent servers.
func javaClient(t *testing.T, j *interop.JVM, d *deployment, watchdog time.Duration) string {
	t.Helper()
	if d.mode == "red" {
		var names []string
		for _, addr := range d.addrs {
			names = append(names, javaClient(t, j, &deployment{name: "red", mode: "member", addrs: []string{addr}}, watchdog))
		}
		return strings.Join(names, ",")
	}
	key := strings.Join(append([]string{d.name, watchdog.String()}, d.addrs...), " ")
	return j.Client(t, key, d.mode, strings.Join(d.addrs, ","), interop.Millis(watchdog), d.prefix)
}

// disconnectAll closes the clients of servers that are going to end, in all processes.
func disconnectAll(t *testing.T, addrs []string) {
	t.Helper()
	jvms.Disconnect(t, func(key string) bool {
		return slices.ContainsFunc(addrs, func(addr string) bool { return slices.Contains(strings.Fields(key), addr) })
	})
}

// token is the fence in the answer of a fenced lock.
func token(t *testing.T, reply []string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(reply[1], 10, 64)
	must.OK(t, err, "java: no token in", reply)
	return n
}

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
		c := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: interop.Patience})
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
	must.OK(t, d.masters(t.Context(), func(ctx context.Context, c *redis.Client) error {
		more, err := c.Keys(ctx, "*"+part+"*").Result()
		mu.Lock()
		defer mu.Unlock()
		keys = append(keys, more...)
		return err
	}))
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
	must.OK(t, d.masters(t.Context(), func(ctx context.Context, c *redis.Client) error {
		info, err := c.Info(ctx, "commandstats").Result()
		for line := range strings.Lines(info) {
			calls := 0
			if n, _ := fmt.Sscanf(line, "cmdstat_evalsha:calls=%d", &calls); n == 1 {
				total.Add(int64(calls))
			}
		}
		return err
	}))
	return int(total.Load())
}

// waits returns when so many waiters have been refused, have subscribed, and have been
// refused again since before: they have nothing left to do but wait.
func (d *deployment) waits(t *testing.T, before, waiters int) {
	t.Helper()
	interop.Eventually(t, func() string { return "there are no waiters" }, func() bool { return d.attempts(t) >= before+2*waiters })
}
