package bench

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

// scenario measures one contender once.
type scenario struct {
	name       string
	at         string // the coordinator
	title      string
	contenders []contender
	ratios     []string // contenders whose first figure all others are compared with; see sameClient
	measure    func(r *rig, c contender) (figures, error)

	// big means that only the report measures it, since it takes long.
	big bool
}

// rig is the environment of every measurement.
type rig struct {
	at string
	coordinator
	settings
}

// settings are the durations and sizes of measurements.
type settings struct {
	time   time.Duration // of one measurement
	leases int
	hold   time.Duration // how long the leases are held
}

// ttl is the TTL of locks in all scenarios except many leases.
const ttl = 30 * time.Second

var scenarios = slices.Concat(redisScenarios, valkeyScenarios, etcdScenarios(onEtcd), etcdScenarios(onOldEtcd), zooKeeperScenarios,
	databaseScenarios(onMariaDB, mysqlAll, mysqlAll, mysqlTogether),
	databaseScenarios(onPostgres, postgresAlone, postgresFighting, postgresTogether),
	databaseScenarios(onSQLite, sqliteAll, sqliteAll, sqliteAll), servedScenarios, growth)

// growth shows what waiters, names and leases cost as they become more.
var growth = slices.Concat(
	remotes(onRedis, remoteOnRedis, 1, 4, 16, 64, 256),
	remotes(onEtcd, []contender{distlockEtcd, mutexPeer}, 1, 2, 4, 8, 16, 64),
	remotes(onZooKeeper, zooKeeperTogether, 1, 2, 4, 8, 16, 64),
	remotes(onPostgres, postgresRemote, 1, 4, 16, 64), remotes(onMariaDB, mysqlRemote, 1, 4, 16, 64),
	remotes(onSQLite, sqliteAll[1:], 1, 4, 16, 64),
	[]scenario{readWrite("readwrite/8", onRedis, 8, remoteOnRedis[:1]), readWrite("readwrite/40", onRedis, 40, remoteOnRedis[:1])},
	[]scenario{readWrite("readwrite", onEtcd, 8, []contender{distlockEtcd}), readWrite("readwrite", onZooKeeper, 8, zooKeeperTogether[:1])},
	[]scenario{readWrite("readwrite", onPostgres, 8, postgresOurs[:1]), readWrite("readwrite", onMariaDB, 8, mysqlOurs[:1]), readWrite("readwrite", onSQLite, 8, sqliteAll[1:])},
	[]scenario{local(10), local(100), local(1000), local(10_000)},
	[]scenario{manyNames(1), manyNames(100), manyNames(10_000), manyNames(1_000_000)},
	[]scenario{leasesOf(1000), leasesOf(10_000), leasesOf(100_000)},
	[]scenario{shop, token, fleet, command, takeover},
)

var redisScenarios = []scenario{
	uncontended(onRedis, 1, uncontending, rawRueidis, sameClient),
	uncontended(onRedis, 16, uncontending, rawRueidis, sameClient),
	uncontended(onRedis, 128, uncontending, rawRueidis, sameClient),
	oneLock(onRedis, 16, everybody), oneLock(onRedis, 64, everybody),
	inProcesses(onRedis, everybody),
	handoff(onRedis, handers),
	fair(onRedis, 64, queueing),
	manyLeases(onRedis, keepers),
}

// valkeyScenarios show what is different there: a release of a free lock is a command, and no script.
var valkeyScenarios = []scenario{
	uncontended(onValkey, 1, valkeyAlone, rawRueidis),
	uncontended(onValkey, 16, valkeyAlone, rawRueidis),
	uncontended(onValkey, 128, valkeyAlone, rawRueidis),
}

func etcdScenarios(at string) []scenario {
	return []scenario{
		uncontended(at, 1, etcdAlone, rawEtcd, mutexPeer.name),
		uncontended(at, 16, etcdAlone, rawEtcd, mutexPeer.name),
		uncontended(at, 128, etcdAlone, rawEtcd, mutexPeer.name),
		inProcesses(at, etcdTogether),
		handoff(at, etcdTogether),
		amidWrites(handoff(at, etcdTogether)),
		manyLeases(at, etcdKeepers),
	}
}

var zooKeeperScenarios = []scenario{
	uncontended(onZooKeeper, 1, zooKeeperAlone, rawZooKeeper, zkLockPeer.name),
	uncontended(onZooKeeper, 16, zooKeeperAlone, rawZooKeeper, zkLockPeer.name),
	uncontended(onZooKeeper, 128, zooKeeperAlone, rawZooKeeper, zkLockPeer.name),
	inProcesses(onZooKeeper, zooKeeperTogether),
	handoff(onZooKeeper, zooKeeperTogether),
	amidWrites(handoff(onZooKeeper, zooKeeperTogether)),
}

var names atomic.Int64

// freshName returns a name that no other measurement uses. A contender's leftovers do not interfere.
func freshName() string { return fmt.Sprintf("bench:%d", names.Add(1)) }

// tally has the results of one process.
type tally struct {
	Each    []int64 // acquisitions of each goroutine
	Times   histogram
	Elapsed time.Duration
}

func (t *tally) total() (n int64) {
	for _, each := range t.Each {
		n += each
	}
	return n
}

func (t *tally) rate() float64 { return float64(t.total()) / t.Elapsed.Seconds() }
