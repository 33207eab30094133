//go:build unix

package redislock

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/go-redis/v9"
)

// BenchmarkPair is a lock and an unlock without contention, beside what the client
// library needs for SET NX PX and a compare-and-delete script. All take turns in short
// slices, so that a busy machine is as busy for one as for the other; the medians of the
// slices are logged, and the ratio to raw go-redis.
//
//	go test -run=- -bench=Pair -benchtime=30x ./backend/redislock
//
// cli-µs and srv-µs are processor time per pair of this process and of the server.
func BenchmarkPair(b *testing.B) {
	srv := testserver.SharedRedis(b)
	list := subjects(b, srv)
	for _, goroutines := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("g=%d", goroutines), func(b *testing.B) {
			results := make([][]result, len(list))
			for b.Loop() {
				for i, s := range list {
					results[i] = append(results[i], measure(b, srv, goroutines, s.pair))
				}
			}
			report(b, list, results)
		})
	}
}

// report prints the medians, compared with the medians of the first subject.
func report(b *testing.B, list []subject, results [][]result) {
	for i, s := range list {
		ratio := median(results[i], func(r result) float64 { return r.rate }, results[0])
		b.ReportMetric(ratio, "x-"+s.name)
		b.Logf("%-18s %8.0f pairs/s  ×%.2f  %5.1f cli-µs  %5.1f srv-µs", s.name,
			median(results[i], func(r result) float64 { return r.rate }, nil), ratio,
			median(results[i], func(r result) float64 { return r.client }, nil),
			median(results[i], func(r result) float64 { return r.server }, nil))
	}
}

const slice = 40 * time.Millisecond

// result is one slice: pairs per second, and µs of processor time per pair.
type result struct{ rate, client, server float64 }

// median of what get tells of each result, relative to base's at the same time.
func median(results []result, get func(result) float64, base []result) float64 {
	var values []float64
	for i, r := range results {
		v := get(r)
		if base != nil {
			v /= get(base[i])
		}
		values = append(values, v)
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// subject locks and unlocks name once.
type subject struct {
	name string
	pair func(ctx context.Context, name string) error
}

func subjects(b *testing.B, srv *testserver.RedisServer) []subject {
	gc := redis.NewClient(&redis.Options{Addr: srv.Addr()})
	b.Cleanup(func() { gc.Close() })
	list := []subject{{"raw-go-redis", rawGoRedis(gc)}}
	for _, layout := range []Layout{String, Redisson} {
		url := must.Get(Open(context.Background(), srv.URL()+"?layout="+string(layout)))(b)
		own := must.Get(NewGoRedis(gc, &Options{Layout: layout}))(b)
		b.Cleanup(func() { url.Close(); own.Close() })
		list = append(list,
			subject{"open-" + string(layout), lockPair(url)},
			subject{"go-redis-" + string(layout), lockPair(own)})
	}
	return list
}

const compareAndDelete = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`

func rawGoRedis(c *redis.Client) func(context.Context, string) error {
	script := redis.NewScript(compareAndDelete)
	return func(_ context.Context, name string) error {
		ctx, owner := context.Background(), driver.NewOwner()
		if err := c.SetNX(ctx, name, owner, 30*time.Second).Err(); err != nil {
			return err
		}
		return script.Run(ctx, c, []string{name}, owner).Err()
	}
}

func lockPair(l *Backend) func(context.Context, string) error {
	meta := map[string]string{"host": "web-1", "pid": "4711", "program": "bench"}
	return func(ctx context.Context, name string) error {
		h := driver.Hold{Name: name, Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: 30 * time.Second}
		g, err := l.Acquire(ctx, driver.Request{Hold: h, Fences: 64, Meta: meta})
		if err != nil {
			return err
		}
		h.Fence = g.Last() // as the core does
		return l.Release(ctx, h)
	}
}

// measure runs pairs for a slice in so many goroutines, each with a name of its own.
func measure(b *testing.B, srv *testserver.RedisServer, goroutines int, pair func(context.Context, string) error) result {
	// The core's calls can be cancelled; that costs, so it is measured.
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	client, server, start := clientCPU(), serverCPU(b, srv), time.Now()
	var pairs atomic.Int64
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			name := "bench:" + strconv.Itoa(g)
			for ; time.Since(start) < slice; pairs.Add(1) {
				if err := pair(ctx, name); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	n, took := float64(pairs.Load()), time.Since(start)
	perPair := func(d time.Duration) float64 { return float64(d.Microseconds()) / n }
	return result{n / took.Seconds(), perPair(clientCPU() - client), perPair(serverCPU(b, srv) - server)}
}

func clientCPU() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func serverCPU(b testing.TB, srv *testserver.RedisServer) time.Duration {
	c := redis.NewClient(&redis.Options{Addr: srv.Addr()})
	defer c.Close()
	info := must.Get(c.Info(context.Background(), "cpu").Result())(b)
	var sum time.Duration
	for line := range strings.Lines(info) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if key == "used_cpu_sys" || key == "used_cpu_user" {
			d, _ := time.ParseDuration(value + "s")
			sum += d
		}
	}
	return sum
}

// BenchmarkRenew renews batchSize holds in one call; µs are processor time per hold.
func BenchmarkRenew(b *testing.B) {
	srv := testserver.SharedRedis(b)
	for _, layout := range []Layout{String, Redisson} {
		b.Run(string(layout), func(b *testing.B) {
			l := openOwn(b, srv.Addr(), Options{Layout: layout})
			holds := make([]driver.Hold, batchSize)
			for i := range holds {
				r := request("", driver.Exclusive)
				r.Fence = acquire(b, l, r).Fence
				holds[i] = r.Hold
			}
			client, server := clientCPU(), serverCPU(b, srv)
			n := 0
			for b.Loop() {
				for _, err := range l.Renew(b.Context(), holds) {
					if err != nil {
						b.Fatal(err)
					}
				}
				n += len(holds)
			}
			b.ReportMetric(float64((clientCPU()-client).Nanoseconds())/1e3/float64(n), "cli-µs/hold")
			b.ReportMetric(float64((serverCPU(b, srv)-server).Nanoseconds())/1e3/float64(n), "srv-µs/hold")
		})
	}
}

// BenchmarkPairOtherWays measures a lock and an unlock without scripts, and with a replica that
// must acknowledge the lock, next to the default.
//
//	go test -run=- -bench=PairOtherWays -benchtime=10x ./backend/redislock
func BenchmarkPairOtherWays(b *testing.B) {
	master, _ := replicated(b)
	usual, off := patient(String), Options{Scripts: ScriptsOff}
	list := []subject{{"open", lockPair(openOwn(b, master.Addr(), Options{}))}}
	for _, o := range openers {
		list = append(list,
			subject{o.name + "-scriptless", lockPair(o.open(b, master.Addr(), off))},
			subject{o.name + "-replica", lockPair(o.open(b, master.Addr(), usual))})
	}
	for _, goroutines := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("g=%d", goroutines), func(b *testing.B) {
			results := make([][]result, len(list))
			for b.Loop() {
				for i, s := range list {
					results[i] = append(results[i], measure(b, master, goroutines, s.pair))
				}
			}
			report(b, list, results)
		})
	}
}

// BenchmarkFair is a fair lock that all fight for, by the core as users have it: one
// turn is a Lock and an Unlock. srv-µs is the server's processor time.
func BenchmarkFair(b *testing.B) {
	srv := testserver.SharedRedis(b)
	for _, layout := range []Layout{String, Redisson} {
		for _, n := range [][2]int{{1, 1}, {1, 64}, {4, 16}} {
			b.Run(fmt.Sprintf("%s/clients=%d/waiters=%d", layout, n[0], n[1]), func(b *testing.B) {
				benchFair(b, srv, layout, n[0], n[1])
			})
		}
	}
}

func benchFair(b *testing.B, srv *testserver.RedisServer, layout Layout, clients, waiters int) {
	name := "fair:" + driver.NewOwner()
	turns := make(chan struct{}, b.N)
	for range b.N {
		turns <- struct{}{}
	}
	close(turns)
	var wg sync.WaitGroup
	server := serverCPU(b, srv)
	b.ResetTimer()
	for range clients {
		c := must.Get(distlock.New(openOwn(b, srv.Addr(), Options{Layout: layout}), nil))(b)
		b.Cleanup(func() { c.Close() })
		for range waiters {
			wg.Go(func() {
				m := c.Mutex(name, distlock.Fair())
				for range turns {
					lease, err := m.Lock(b.Context())
					if err == nil {
						err = lease.Unlock(b.Context())
					}
					if err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "turns/s")
	b.ReportMetric(float64((serverCPU(b, srv)-server).Microseconds())/float64(b.N), "srv-µs/turn")
}

// BenchmarkWaiters is a lock that many clients wait for, of which each holds it for a millisecond.
// cmds/turn counts all commands that clients send, subs/turn only the commands for subscriptions.
// longest/clients is the longest wait, counted in others' turns, for each client, and most/fewest the
// ratio of the clients' turns.
func BenchmarkWaiters(b *testing.B) {
	srv := testserver.SharedRedis(b)
	for _, layout := range []Layout{String, Redisson} {
		for _, clients := range []int{2, 17, 65, 257} {
			b.Run(fmt.Sprintf("%s/clients=%d", layout, clients), func(b *testing.B) { benchWaiters(b, srv, layout, clients) })
		}
	}
}

func benchWaiters(b *testing.B, srv *testserver.RedisServer, layout Layout, clients int) {
	name := "waiters:" + driver.NewOwner()
	turns, most := make([]int, clients), make([]int64, clients)
	var turn atomic.Int64
	var wg sync.WaitGroup
	locks := make([]*distlock.Mutex, clients)
	for i := range clients {
		c := must.Get(distlock.New(openOwn(b, srv.Addr(), Options{Layout: layout}), nil))(b)
		b.Cleanup(func() { c.Close() })
		locks[i] = c.Mutex(name)
	}
	run := func(n int) {
		turn.Store(0)
		for i, m := range locks {
			wg.Go(func() {
				for asked := int64(0); asked < int64(n); {
					lease, err := m.Lock(b.Context())
					if err != nil {
						b.Error(err)
						return
					}
					at := turn.Add(1)
					turns[i]++
					most[i] = max(most[i], at-asked)
					asked = at
					time.Sleep(time.Millisecond)
					if err := lease.Unlock(b.Context()); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	run(2 * clients) // connections, and the queue
	clear(turns)
	clear(most)
	usage(b, srv)
	server := serverCPU(b, srv)
	b.ResetTimer()
	run(b.N)
	b.StopTimer()
	sent, others := usage(b, srv)
	subs := others["subscribe"] + others["unsubscribe"]
	total := float64(turn.Load())
	b.ReportMetric(total/b.Elapsed().Seconds(), "turns/s")
	b.ReportMetric(float64(countCalls(sent)+subs)/total, "cmds/turn")
	b.ReportMetric(float64(subs)/total, "subs/turn")
	b.ReportMetric(float64(slices.Max(most))/float64(clients), "longest/clients")
	b.ReportMetric(float64(slices.Max(turns))/float64(slices.Min(turns)), "most/fewest")
	b.ReportMetric(float64((serverCPU(b, srv)-server).Microseconds())/total, "srv-µs/turn")
}
