package bench

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// contender is one way to lock at a coordinator.
type contender struct {
	name string
	raw  string // the bare contender on the same client library; empty if it has its own
	open func(addr string, ttl time.Duration) (client, error)

	// ours means that this is distlock, whose failures fail the run. A peer's failures are reported.
	ours bool

	// plain means that it acquires with a plain SET. The others use scripts only; see sent.
	plain bool
}

// client is one process's client of a contender.
type client interface {
	mutex(name string) mutex
	close()
}

// mutex is one goroutine's handle of a lock.
type mutex interface {
	// lock waits until the lock is held, or ctx is done.
	lock(ctx context.Context) error
	unlock() error
}

// fenced is a mutex with fencing tokens.
type fenced interface{ fence() uint64 }

// extender is a mutex that its user must renew.
type extender interface {
	extend(ctx context.Context) error
}

const (
	rawRueidis = "raw rueidis"
	rawGoRedis = "raw go-redis"
)

var (
	distlockDefault = contender{name: "distlock", open: openDistlock, ours: true}
	distlockFair    = contender{name: "distlock fair", open: openDistlockFair, ours: true}
	distlockTurns   = contender{name: "distlock without hand-off", open: openDistlockTurns, ours: true}
	rueidislockPeer = contender{name: "rueidislock", raw: rawRueidis, open: openRueidislock}
	rueidisPlain    = contender{name: rawRueidis, raw: rawRueidis, open: openRawRueidis, plain: true}
	goRedisPlain    = contender{name: rawGoRedis, raw: rawGoRedis, open: openRawGoRedis, plain: true}
	wakeup          = contender{name: "raw PUBLISH, receive, EVALSHA", raw: rawRueidis, open: openWakeup}
)

// redsync and redislock wait for a configured time between two attempts.
var (
	redsyncDefault   = contender{name: "redsync", raw: rawGoRedis, open: openRedsync(0), plain: true}
	redsyncQuick     = contender{name: "redsync 1 ms", raw: rawGoRedis, open: openRedsync(time.Millisecond), plain: true}
	redislockDefault = contender{name: "redislock 100 ms", raw: rawGoRedis, open: openRedislock(100 * time.Millisecond)}
	redislockQuick   = contender{name: "redislock 1 ms", raw: rawGoRedis, open: openRedislock(time.Millisecond)}
)

// The contenders on etcd. The raw one would only poll if it had to wait.
const rawEtcd = "raw put, delete"

var (
	distlockEtcd = contender{name: "distlock", open: openDistlockAt("etcd://"), ours: true}
	neverEtcd    = contender{name: never.name, open: openDistlockAt("etcd://"), ours: true}
	mutexPeer    = contender{name: "concurrency.Mutex", open: openMutex}
	mutexEach    = contender{name: "concurrency.Mutex, a session each", open: openMutexes}

	etcdAlone    = []contender{{name: rawEtcd, open: openRawEtcd}, distlockEtcd, mutexPeer}
	etcdTogether = []contender{distlockEtcd, mutexEach}
	etcdKeepers  = []contender{neverEtcd, distlockEtcd, mutexPeer, mutexEach}
)

// The contenders on ZooKeeper.
const rawZooKeeper = "raw create, delete"

var (
	distlockZooKeeper = contender{name: "distlock", open: openDistlockAt("zk://"), ours: true}
	zkLockPeer        = contender{name: "zk.Lock", open: openZkLock}

	zooKeeperAlone    = []contender{{name: rawZooKeeper, open: openRawZooKeeper}, distlockZooKeeper, zkLockPeer}
	zooKeeperTogether = []contender{distlockZooKeeper, zkLockPeer}
)

// never holds no leases. It shows the cost of the rest of a measurement.
var never = contender{name: "none held", open: openDistlock, ours: true}

var (
	everybody = []contender{
		rueidisPlain, goRedisPlain, distlockDefault,
		redsyncDefault, redsyncQuick, redislockDefault, redislockQuick, rueidislockPeer,
	}
	// Without waiters the pause between attempts makes no difference.
	uncontending = []contender{
		rueidisPlain, goRedisPlain, distlockDefault,
		redsyncDefault, redislockDefault, rueidislockPeer,
	}
	valkeyAlone = []contender{rueidisPlain, distlockDefault, rueidislockPeer}

	handers  = append([]contender{wakeup}, everybody...)
	queueing = []contender{rueidisPlain, distlockDefault, distlockTurns, distlockFair}
	// In the growth and the stories each contender is as its README recommends.
	remoteOnRedis = []contender{distlockDefault, redsyncDefault, redislockDefault, rueidislockPeer}
	keepers       = []contender{never, distlockDefault, redsyncDefault, redislockDefault, rueidislockPeer}
)

// contenderNamed returns the contender with a name on a coordinator.
func contenderNamed(at, name string) (contender, error) {
	for _, s := range scenarios {
		i := slices.IndexFunc(s.contenders, func(c contender) bool { return c.name == name })
		if s.at == at && i >= 0 {
			return s.contenders[i], nil
		}
	}
	return contender{}, fmt.Errorf("no contender on %s is called %q", at, name)
}

// The contenders on databases. Raw ones that can't wait in the database retry every millisecond.
const (
	rawUpdate = "raw UPDATE"
	strategy  = "distlock "
)

// onDatabase returns the contender for a strategy of distlock, given by URL parameters.
func onDatabase(name, params string) contender {
	return contender{name: strategy + name, open: openDistlockIn(params), ours: true}
}

// The contenders on MariaDB.
var (
	mysqlUpdate    = contender{name: rawUpdate, open: rawMySQL(connections, newUpdateMySQL)}
	mysqlGetLock   = contender{name: "raw GET_LOCK", open: rawMySQL(connections, newGetLock)}
	mysqlForUpdate = contender{name: "raw FOR UPDATE", open: rawMySQL(connections, newForUpdateMySQL)}

	mysqlOurs = []contender{
		onDatabase("Row", "strategy=row"),
		onDatabase("ForUpdate", "strategy=forupdate"),
		onDatabase("Session", "strategy=session"),
	}
	mysqlAll = join([]contender{
		mysqlUpdate,
		mysqlGetLock,
		{name: "raw GET_LOCK and a row that counts", open: rawMySQL(connections, newFencedGetLock)},
		mysqlForUpdate,
		{name: "raw INSERT, DELETE", open: rawMySQL(connections, newInsertDeleteMySQL)},
	}, mysqlOurs)
	// With many clients each has one connection.
	mysqlRemote   = join([]contender{{name: mysqlGetLock.name, open: rawMySQL(1, newGetLock)}}, mysqlOurs)
	mysqlTogether = join([]contender{mysqlUpdate, mysqlGetLock, mysqlForUpdate}, mysqlOurs)
)

// The contenders on PostgreSQL. After each refusal cirello.io/pglock waits for its lease, 20 s by
// default. Where waiting is measured the lease is one second.
var (
	postgresUpdate    = contender{name: rawUpdate, open: rawPostgres(connections, newUpdatePostgres)}
	postgresAdvisory  = contender{name: "raw advisory", open: rawPostgres(connections, newAdvisory)}
	postgresForUpdate = contender{name: "raw FOR UPDATE", open: rawPostgres(connections, newForUpdatePostgres)}
	cirelloDefault    = contender{name: "cirello.io/pglock", open: openCirello(20 * time.Second)}
	cirelloQuick      = contender{name: "cirello.io/pglock, lease 1 s", open: openCirello(time.Second)}

	postgresOurs = []contender{
		onDatabase("Row", "strategy=row"),
		onDatabase("Advisory", "strategy=advisory"),
	}
	postgresRaw = []contender{
		postgresUpdate,
		postgresAdvisory,
		{name: "raw advisory, nextval", open: rawPostgres(connections, newFencedAdvisory)},
		{name: "raw advisory, transaction", open: rawPostgres(connections, newAdvisoryInTransaction)},
		postgresForUpdate,
		{name: "raw INSERT, DELETE", open: rawPostgres(connections, newInsertDeletePostgres)},
	}
	postgresRemote   = join([]contender{{name: postgresAdvisory.name, open: rawPostgres(1, newAdvisory)}}, postgresOurs)
	postgresAlone    = join(postgresRaw, postgresOurs, cirelloDefault)
	postgresFighting = join(postgresRaw, postgresOurs, cirelloQuick)
	postgresTogether = join([]contender{postgresUpdate, postgresAdvisory, postgresForUpdate}, postgresOurs, cirelloQuick)
)

func join(raw, ours []contender, peers ...contender) []contender {
	return append(append(append([]contender{}, raw...), ours...), peers...)
}

// The contenders on SQLite.
var sqliteAll = []contender{{name: rawUpdate, open: openRawSQLite}, {name: "distlock", open: openDistlockWith("sqlite:", ""), ours: true}}

// databaseScenarios returns a database's scenarios. alone run without contention, fighting contend in
// one process, and together contend in several.
func databaseScenarios(at string, alone, fighting, together []contender) []scenario {
	return []scenario{
		uncontended(at, 1, alone, rawUpdate),
		uncontended(at, 16, alone, rawUpdate),
		oneLock(at, 16, fighting),
		inProcesses(at, together),
		handoff(at, together),
	}
}
