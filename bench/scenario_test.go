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

var scenarios = slices.Concat(redisScenarios, etcdScenarios(onEtcd), etcdScenarios(onOldEtcd), zooKeeperScenarios,
	databaseScenarios(onMariaDB, mysqlAll, mysqlAll, mysqlTogether),
	databaseScenarios(onPostgres, postgresAlone, postgresFighting, postgresTogether),
	databaseScenarios(onSQLite, sqliteAll, sqliteAll, sqliteAll))

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
