package bench

import (
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
