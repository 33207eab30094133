package mysqllock

import (
	"context"
	"math/rand/v2"
	"time"
)

// Rows of holders that died stay behind, if nobody takes the lock again. They are removed
// by and by.
const (
	sweepEvery = 30 * time.Second
	sweepAge   = time.Minute // since the lease ended
	sweepStep  = 256         // rows at most, each time
)

// startSweeper starts the sweeper, which Close ends.
func (u *unique) startSweeper() {
	ctx, cancel := context.WithCancel(context.Background())
	u.stop = cancel
	u.sweeps.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(sweepEvery/2 + rand.N(sweepEvery)):
			}
			// What fails is done another time, or by another process.
			_, _ = u.sweep(ctx, sweepAge)
		}
	})
}

// Close ends the sweeper, too.
func (u *unique) Close() error {
	u.stop()
	u.sweeps.Wait()
	return u.leases.Close()
}

// grave is a row whose lease has ended.
type grave struct {
	name, owner string
	expires     int64
}

// sweep removes some of the rows whose leases ended so long ago, and tells how many. Each is
// deleted by itself, on condition that it is as it was: one that was taken over is
// another one.
func (u *unique) sweep(ctx context.Context, age time.Duration) (int, error) {
	graves, err := u.graves(ctx, age)
	if err != nil {
		return 0, err
	}
	var swept int
	for _, g := range graves {
		n, err := u.run(ctx, u.bury, g.name, g.owner, g.expires)
		if err != nil {
			return swept, err
		}
		swept += int(n)
	}
	return swept, nil
}

func (u *unique) graves(ctx context.Context, age time.Duration) ([]grave, error) {
	rows, err := u.dead.QueryContext(ctx, micros(age), sweepStep)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var graves []grave
	for rows.Next() {
		var g grave
		if err := rows.Scan(&g.name, &g.owner, &g.expires); err != nil {
			return nil, err
		}
		graves = append(graves, g)
	}
	return graves, rows.Err()
}
