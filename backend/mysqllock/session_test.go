package mysqllock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// others are settings that an administrator makes for all sessions that begin later.
var others = []string{
	"autocommit = 0", "completion_type = 'CHAIN'", "sql_mode = 'EMPTY_STRING_IS_NULL'", "sql_select_limit = 1", "sql_safe_updates = 1",
	"tx_isolation = 'SERIALIZABLE'", "tx_read_only = 1", "lock_wait_timeout = 77", "max_statement_time = 3", "sql_auto_is_null = 1",
	"character_set_client = latin1", "collation_connection = 'utf16_general_ci'",
}

// Global settings change while a backend is open, and its connections are replaced. What a call was answered stays true.
func TestSettingsThatChange(t *testing.T) {
	t.Parallel()
	srv := testserver.MariaDB(t, testserver.MariaDBOptions{})
	db := srv.DB(t, srv.URL())
	type pair struct {
		s    Strategy
		a, b *Backend
	}
	var pairs []pair
	for _, s := range Strategies() {
		u := srv.Database(t)
		a := connect(t, u+"?create=true&strategy="+string(s))
		b := must.Get(New(t.Context(), srv.DB(t, u), &Options{Strategy: s}))(t)
		t.Cleanup(func() { b.Close() })
		pairs = append(pairs, pair{s, a, b}, pair{s, b, a})
	}
	admin := alone(t, db)
	for _, setting := range others {
		admin("SET GLOBAL " + setting)
	}
	cut := func() {
		for _, id := range strings.Fields(srv.Ask(t, "SELECT COALESCE(GROUP_CONCAT(ID SEPARATOR ' '), '') FROM information_schema.PROCESSLIST WHERE USER = 'root' AND ID <> CONNECTION_ID()")) {
			db.ExecContext(t.Context(), "KILL "+id) // it may have ended
		}
	}
	cut()
	for i, p := range pairs {
		r := request(fmt.Sprint("x", i%2), long)
		if p.s != Row {
			r.TTL = time.Hour // of connections, none of which is cut from now on
		}
		first := takeAtLast(t, p.a, r)
		if p.s == Row {
			cut()
		}
		if _, err := p.b.Acquire(t.Context(), request(r.Name, long)); err == nil || p.s == Row && !held(err) {
			t.Errorf("%s: a rival: %v", p.s, err)
		}
		release(t, p.a, r)
		if next := takeAtLast(t, p.b, request(r.Name, long)); next.Fence <= first.Last() {
			t.Errorf("%s: fence %d after %d", p.s, next.Fence, first.Last())
		}
	}
}

// DEFAULT means the global value.
func TestGlobalSelectLimit(t *testing.T) {
	t.Parallel()
	srv := testserver.MariaDB(t, testserver.MariaDBOptions{})
	u := srv.Database(t)
	srv.Exec(t, "SET GLOBAL sql_select_limit = 0")
	for _, s := range Strategies() {
		b, err := Open(t.Context(), u+"?create=true&strategy="+string(s))
		if err != nil {
			t.Errorf("%s: %v", s, err)
			continue
		}
		r := request("x", long)
		take(t, b, r)
		release(t, b, r)
		expect.OK(t, b.Close())
	}
}

// alone returns a function that runs statements on one connection.
func alone(t *testing.T, db *sql.DB) func(string) {
	t.Helper()
	conn := must.Get(db.Conn(t.Context()))(t)
	t.Cleanup(func() { conn.Close() })
	return func(text string) {
		t.Helper()
		must.OK(t, expect.Err(conn.ExecContext(context.Background(), text)), text)
	}
}

// held reports whether another owner holds, or the connection was cut in the very moment.
func held(err error) bool {
	return errors.Is(err, driver.ErrHeld) || errors.Is(err, mysql.ErrInvalidConn)
}

// takeAtLast repeats an attempt whose connection was cut.
func takeAtLast(t *testing.T, b driver.Backend, r driver.Request) (g driver.Grant) {
	t.Helper()
	until(t, "the lock is granted", func() bool {
		var err error
		g, err = b.Acquire(t.Context(), r)
		if err != nil && (driver.Final(err) || errors.Is(err, driver.ErrHeld)) {
			t.Fatalf("acquire: %v", err)
		}
		return err == nil
	})
	return g
}

// While a table is locked, attempts wait in the server no longer than a moment, so that none takes effect long after its
// caller has gone.
func TestAttemptsBehindALockedTableEnd(t *testing.T) {
	t.Parallel()
	for _, s := range Strategies() {
		t.Run(string(s), func(t *testing.T) {
			t.Parallel()
			url, db := freshDatabase(t, s)
			b := connect(t, url)
			r := request("x", long)
			take(t, b, r)
			release(t, b, r)
			admin := alone(t, db)
			admin("LOCK TABLES " + b.database.opts.Table + " WRITE")
			defer admin("UNLOCK TABLES")
			waiting := func() int64 {
				return ask(t, db, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = ? AND STATE LIKE 'Waiting for table%'", databaseOf(t, url))
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { _, err := b.Acquire(ctx, request("x", long)); done <- err }()
			until(t, "the attempt waits", func() bool { return waiting() > 0 || s == ForUpdate && len(done) > 0 })
			cancel()
			if err := <-done; err == nil || driver.Final(err) {
				t.Errorf("an attempt that was given up: %v", err)
			}
			until(t, "nothing waits for the table", func() bool { return waiting() == 0 })
		})
	}
}

// A caller's pool gets no connection of ours back, and does not go without one for long.
func TestPoolIsNotChanged(t *testing.T) {
	t.Parallel()
	for _, s := range Strategies() {
		u, _ := freshDatabase(t, s)
		pool := rowPool(t, u, session("lock_wait_timeout", "77", "autocommit", "0"))
		const limit = 4
		pool.SetMaxOpenConns(limit)
		b := must.Get(New(t.Context(), pool, &Options{Strategy: s, Create: true}))(t)
		r := request("x", long)
		take(t, b, r)
		release(t, b, r)
		expect.OK(t, b.Close())
		wantUntouched(t, pool, limit)
	}
}

// A program changes the database, or the clock, of its pool's connections. Locks stay where they were, and end by the
// server's clock.
func TestPoolThatUsesAnotherDatabase(t *testing.T) {
	t.Parallel()
	for _, s := range []Strategy{Row, Session, ForUpdate} {
		t.Run(string(s), func(t *testing.T) {
			t.Parallel()
			u, _ := freshDatabase(t, s)
			elsewhere, _ := freshDatabase(t, s)
			connect(t, elsewhere) // the table is there, too
			rival := connect(t, u)
			pool := rowPool(t, u, nil)
			b := must.Get(New(t.Context(), pool, &Options{Strategy: s}))(t)
			t.Cleanup(func() { b.Close() })
			b.database.lent.dropUnused()
			pool.SetMaxIdleConns(8)
			var conns []*sql.Conn
			for range 8 {
				conn := must.Get(pool.Conn(t.Context()))(t)
				conns = append(conns, conn)
				must.Get(conn.ExecContext(t.Context(), "USE "+databaseOf(t, elsewhere)))(t)
				must.Get(conn.ExecContext(t.Context(), "SET timestamp = UNIX_TIMESTAMP() + 10000"))(t)
			}
			for _, conn := range conns {
				conn.Close()
			}
			for i := range 3 { // more than the connections that were opened before
				take(t, b, request(fmt.Sprint("before", i), time.Hour))
			}
			r := request("x", time.Hour)
			take(t, rival, r)
			if g, err := b.Acquire(t.Context(), request("x", time.Hour)); !errors.Is(err, driver.ErrHeld) {
				t.Errorf("a second holder: %+v, %v", g, err)
			}
			release(t, rival, r)
			take(t, b, request("x", time.Hour))
			if g, err := rival.Acquire(t.Context(), request("x", time.Hour)); !errors.Is(err, driver.ErrHeld) {
				t.Errorf("a second holder: %+v, %v", g, err)
			}
		})
	}
}

// wantUntouched uses so many connections of a pool at once.
func wantUntouched(t *testing.T, pool *sql.DB, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	for range n {
		conn := must.Get(pool.Conn(ctx))(t)
		defer conn.Close()
		var wait, commits int
		if err := conn.QueryRowContext(ctx, "SELECT @@lock_wait_timeout, @@autocommit").Scan(&wait, &commits); err != nil || wait != 77 || commits != 0 {
			t.Errorf("lock_wait_timeout %d, autocommit %d, %v", wait, commits, err)
		}
	}
}

// turning is a connector that can change its mind.
type turning struct {
	sqldriver.Connector
	to atomic.Pointer[sqldriver.Connector]
}

func (c *turning) Connect(ctx context.Context) (sqldriver.Conn, error) {
	return (*c.to.Load()).Connect(ctx)
}

// A proxy begins to send what only reads to a replica, which has another clock, and rows that do not change any more. A
// free lock is not held for ever by somebody then: the error says what is wrong.
func TestAReplicaIsNotBelieved(t *testing.T) {
	t.Parallel()
	one, other := testserver.SharedMariaDB(t), testserver.MariaDB(t, testserver.MariaDBOptions{})
	primary, replica := one.Database(t)+"?create=true", other.Database(t)+"?create=true"
	name := databaseOf(t, primary) // a replica's, too
	replica = strings.Replace(replica, "/"+databaseOf(t, replica)+"?", "/"+name+"?", 1)
	other.Exec(t, "CREATE DATABASE IF NOT EXISTS "+name)
	connect(t, primary)
	stale := connect(t, replica)
	take(t, stale, request("x", long))
	writer, reader := connectorTo(t, primary), connectorTo(t, replica)
	split := &turning{}
	split.to.Store(&writer)
	pool := sql.OpenDB(&splitter{writer, split, new(time.Duration)})
	t.Cleanup(func() { pool.Close() })
	b := must.Get(New(t.Context(), pool, nil))(t)
	t.Cleanup(func() { b.Close() })
	split.to.Store(&reader)
	other.Exec(t, "SET GLOBAL read_only = 1")
	b.database.lent.dropUnused()
	_, err := b.Acquire(t.Context(), request("x", long))
	if err == nil || driver.Final(err) || errors.Is(err, driver.ErrHeld) || !strings.Contains(err.Error(), "read-only server has answered") {
		t.Error(err)
	}
}

func connectorTo(t *testing.T, rawURL string) sqldriver.Connector {
	t.Helper()
	c := must.Get(mysql.ParseDSN(testserver.MariaDBSource(rawURL)))(t)
	made := must.Get(mysql.NewConnector(c))(t)
	return made
}

// The caller's work may change settings of the connection that keeps its lock. The next lock of that connection is kept.
func TestWorkThatChangesSettings(t *testing.T) {
	t.Parallel()
	u, db := freshDatabase(t, ForUpdate)
	do(t, db, "CREATE TABLE work (id INT) ENGINE=InnoDB")
	for _, setting := range []string{"autocommit = 1", "SESSION sql_select_limit = 0", "SESSION completion_type = 1", "SESSION tx_isolation = 'SERIALIZABLE'"} {
		b, rival := connect(t, u), connect(t, u)
		for i := range 3 { // the connection that was used last is the next one
			r := request(fmt.Sprint(setting, i), time.Hour)
			take(t, b, r)
			if g, err := rival.Acquire(t.Context(), request(r.Name, time.Hour)); !errors.Is(err, driver.ErrHeld) {
				t.Fatalf("%s: a second holder: %+v, %v", setting, g, err)
			}
			err := b.Commit(t.Context(), r.Owner, func(tx *sql.Tx) error {
				_, err := tx.Exec("SET " + setting)
				return err
			})
			if err != nil && !errors.Is(err, driver.ErrLost) {
				t.Fatalf("%s: %v", setting, err)
			}
		}
	}
}
