package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"
)

// coordinator is the server that all contenders of a scenario use, as an observer sees it.
type coordinator interface {
	Addr() string
	version() (string, error)
	usage(c contender) (usage, error)
}

// keeper is a coordinator that can count its locks.
type keeper interface {
	// count returns the number of live locks with part in their names.
	count(part string) (int, error)

	// clear removes all leftovers of a measurement. Other measurements use other names.
	clear() error
}

// writer is a coordinator that also accepts unrelated writes.
type writer interface {
	// write makes writes unrelated to locks, repeatedly until stop.
	write(every time.Duration) (stop func(), err error)
}

// usage is the server's resource usage since its start.
type usage struct {
	sent int64         // commands that clients sent
	cpu  time.Duration // of the whole server
}

// The coordinators, as scenarios name them.
const (
	onRedis     = "redis"
	onValkey    = "valkey"
	onEtcd      = "etcd"
	onOldEtcd   = "etcd-installed"
	onZooKeeper = "zookeeper"
	onMariaDB   = "mysql"
	onPostgres  = "postgres"
	onSQLite    = "sqlite"
)

var coordinators = map[string]func(tb testing.TB) coordinator{
	onRedis:     startRedis,
	onValkey:    startValkey,
	onEtcd:      startCurrentEtcd,
	onOldEtcd:   startInstalledEtcd,
	onZooKeeper: startZooKeeper,
	onMariaDB:   startMariaDB,
	onPostgres:  startPostgres,
	onSQLite:    startSQLite,
}

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
