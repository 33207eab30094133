package bench

import (
	"testing"
	"time"
)

// coordinator is the server that all contenders of a scenario use, seen from the side.
type coordinator interface {
	Addr() string
	version() (string, error)
	usage(c contender) (usage, error)
}

// keeper is a coordinator that can tell what it keeps.
type keeper interface {
	// count is how many locks with part in their names live.
	count(part string) (int, error)

	// clear frees what a measurement left. Other measurements use other names.
	clear() error
}

// writer is a coordinator that takes unrelated writes as well.
type writer interface {
	// write writes what has nothing to do with locks, again and again, until stop.
	write(every time.Duration) (stop func(), err error)
}

// usage is what the server has done since it was started.
type usage struct {
	sent int64         // commands that clients sent
	cpu  time.Duration // of the whole server
}

// The coordinators, as scenarios name them.
const (
	onRedis     = "redis"
	onEtcd      = "etcd"
	onOldEtcd   = "etcd-installed"
	onZooKeeper = "zookeeper"
	onMariaDB   = "mysql"
	onPostgres  = "postgres"
	onSQLite    = "sqlite"
)

var coordinators = map[string]func(tb testing.TB) coordinator{
	onRedis:     startRedis,
	onEtcd:      startCurrentEtcd,
	onOldEtcd:   startInstalledEtcd,
	onZooKeeper: startZooKeeper,
	onMariaDB:   startMariaDB,
	onPostgres:  startPostgres,
	onSQLite:    startSQLite,
}
