package pglock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// pair acquires and releases lock i.
type pair func(ctx context.Context, i int) error

// plainPair acquires and releases with two handwritten statements.
func plainPair(b *testing.B, url string) pair {
	db := openPool(mustConnector(b, url, &Options{}), maxConns)
	b.Cleanup(func() { db.Close() })
	_, err := db.Exec(`CREATE TABLE plain (k text PRIMARY KEY, owner text, token bigint NOT NULL, expires timestamptz) WITH (fillfactor = 50)`)
	if err == nil {
		_, err = db.Exec(`INSERT INTO plain SELECT 'lock' || i, NULL, 0, NULL FROM generate_series(0, 15) i`)
	}
	if err != nil {
		b.Fatal(err)
	}
	return func(ctx context.Context, i int) error {
		key, owner, token := fmt.Sprint("lock", i), driver.NewOwner(), 0
		err := db.QueryRowContext(ctx, `UPDATE plain SET owner = $2, token = token + 1, expires = clock_timestamp() + interval '1 minute'
			WHERE k = $1 AND (owner IS NULL OR expires < clock_timestamp()) RETURNING token`, key, owner).Scan(&token)
		if err != nil {
			return err
		}
		_, err = db.ExecContext(ctx, `UPDATE plain SET owner = NULL WHERE k = $1 AND owner = $2`, key, owner)
		return err
	}
}

func rowPair(b *testing.B, url string) pair {
	locks := open(b, with(b, url, "create", "true"))
	return func(ctx context.Context, i int) error {
		r := request(fmt.Sprint("lock", i))
		if _, err := locks.Acquire(ctx, r); err != nil {
			return err
		}
		return locks.Release(ctx, r.Hold)
	}
}

// BenchmarkPair compares uncontended locks with the same statements written by hand, in rounds that
// alternate. One iteration is one round of each.
func BenchmarkPair(b *testing.B) {
	for _, n := range []int{1, 16} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			url := testserver.SharedPostgres(b).Database(b)
			plain, row := plainPair(b, url), rowPair(b, url)
			var plains, rows, ratios []float64
			for b.Loop() {
				p, r := round(b, n, plain), round(b, n, row)
				plains, rows, ratios = append(plains, p), append(rows, r), append(ratios, r/p)
			}
			b.ReportMetric(median(plains), "plain/s")
			b.ReportMetric(median(rows), "row/s")
			b.ReportMetric(median(ratios), "ratio")
		})
	}
}

// round returns how many pairs n goroutines complete per second.
func round(b *testing.B, n int, one pair) float64 {
	const life = 200 * time.Millisecond
	var done atomic.Int64
	var all sync.WaitGroup
	start := time.Now()
	for i := range n {
		all.Go(func() {
			for time.Since(start) < life {
				if err := one(b.Context(), i); err != nil {
					b.Error(err)
					return
				}
				done.Add(1)
			}
		})
	}
	all.Wait()
	return float64(done.Load()) / time.Since(start).Seconds()
}

func median(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}

// BenchmarkHandOver measures the time from a release to the grant in another, waiting process.
func BenchmarkHandOver(b *testing.B) {
	url := fresh(b)
	from, to := open(b, url), open(b, url)
	var took []float64
	for b.Loop() {
		took = append(took, handOver(b, from, to).Seconds()*1e3)
	}
	slices.Sort(took)
	b.ReportMetric(took[len(took)/2], "p50-ms")
	b.ReportMetric(took[len(took)*99/100], "p99-ms")
}

func handOver(b *testing.B, from, to *Backend) time.Duration {
	mine, theirs := request("lock"), request("lock")
	take(b, from, mine)
	w := must.Get(to.Watch(b.Context(), theirs))(b)
	defer w.Close()
	released := make(chan error, 1)
	start := time.Now()
	go func() { released <- from.Release(b.Context(), mine.Hold) }()
	for {
		ready(b, w)
		if _, err := to.Acquire(b.Context(), theirs); err == nil {
			break
		} else if !errors.Is(err, driver.ErrHeld) {
			b.Fatal(err)
		}
	}
	took := time.Since(start)
	must.OK(b, <-released)
	release(b, to, theirs)
	return took
}
