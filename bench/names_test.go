package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"
)

// manyNames locks names at random out of many.
func manyNames(count int) scenario {
	return scenario{
		name: onRedis + "/names/" + strconv.Itoa(count), at: onRedis,
		contenders: []contender{rueidisPlain, distlockDefault, rueidislockPeer},
		title:      fmt.Sprintf("16 goroutines lock and unlock one of %d names at random", count),
		big:        count > 1000,
		measure: func(r *rig, c contender) (figures, error) {
			return measureNames(r, c, count)
		},
	}
}

func measureNames(r *rig, c contender, count int) (figures, error) {
	cl, err := c.open(r.Addr(), ttl)
	if err != nil {
		return nil, err
	}
	defer cl.close()
	if err := warmUpAlone(cl); err != nil {
		return nil, err
	}
	name := freshName()
	t, err := during(r.time, 16, func(ctx context.Context, g int, w *worker) error {
		for !w.over() {
			m := cl.mutex(name + ":" + strconv.Itoa(rand.N(count)))
			start := time.Now()
			if err := pair(ctx, m); err != nil {
				return err
			}
			w.count(time.Since(start))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return figures{
		{"pairs/s", t.rate()},
		{"p99-ms", millis(t.Times.quantile(.99))},
		{longest, millis(t.Times.Max)},
	}, nil
}
