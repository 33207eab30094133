package bench

import "time"

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
	mysqlUpdate    = contender{name: rawUpdate, open: rawMySQL(newUpdateMySQL)}
	mysqlGetLock   = contender{name: "raw GET_LOCK", open: rawMySQL(newGetLock)}
	mysqlForUpdate = contender{name: "raw FOR UPDATE", open: rawMySQL(newForUpdateMySQL)}

	mysqlOurs = []contender{
		onDatabase("Row", "strategy=row"),
		onDatabase("ForUpdate", "strategy=forupdate"),
		onDatabase("Session", "strategy=session"),
	}
	mysqlAll = join([]contender{
		mysqlUpdate,
		mysqlGetLock,
		{name: "raw GET_LOCK and a row that counts", open: rawMySQL(newFencedGetLock)},
		mysqlForUpdate,
		{name: "raw INSERT, DELETE", open: rawMySQL(newInsertDeleteMySQL)},
	}, mysqlOurs)
	mysqlTogether = join([]contender{mysqlUpdate, mysqlGetLock, mysqlForUpdate}, mysqlOurs)
)

// The contenders on PostgreSQL. After each refusal cirello.io/pglock waits for its lease, 20 s by
// default. Where waiting is measured the lease is one second.
var (
	postgresUpdate    = contender{name: rawUpdate, open: rawPostgres(newUpdatePostgres)}
	postgresAdvisory  = contender{name: "raw advisory", open: rawPostgres(newAdvisory)}
	postgresForUpdate = contender{name: "raw FOR UPDATE", open: rawPostgres(newForUpdatePostgres)}
	cirelloDefault    = contender{name: "cirello.io/pglock", open: openCirello(20 * time.Second)}
	cirelloQuick      = contender{name: "cirello.io/pglock, lease 1 s", open: openCirello(time.Second)}

	postgresOurs = []contender{
		onDatabase("Row", "strategy=row"),
		onDatabase("Advisory, session", "strategy=advisory"),
		onDatabase("Advisory, transaction", "strategy=advisory&level=transaction"),
	}
	postgresRaw = []contender{
		postgresUpdate,
		postgresAdvisory,
		{name: "raw advisory, nextval", open: rawPostgres(newFencedAdvisory)},
		{name: "raw advisory, transaction", open: rawPostgres(newAdvisoryInTransaction)},
		postgresForUpdate,
		{name: "raw INSERT, DELETE", open: rawPostgres(newInsertDeletePostgres)},
	}
	postgresAlone    = join(postgresRaw, postgresOurs, cirelloDefault)
	postgresFighting = join(postgresRaw, postgresOurs, cirelloQuick)
	postgresTogether = join([]contender{postgresUpdate, postgresAdvisory, postgresForUpdate}, postgresOurs, cirelloQuick)
)

func join(raw, ours []contender, peers ...contender) []contender {
	return append(append(append([]contender{}, raw...), ours...), peers...)
}

// The contenders on SQLite.
var sqliteAll = []contender{{name: rawUpdate, open: openRawSQLite}, {name: "distlock", open: openDistlockAt("sqlite:"), ours: true}}

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
