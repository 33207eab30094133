package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/connlock"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestConformanceOfSession(t *testing.T) {
	t.Parallel()
	conform(t, Session)
}

// Each hold of ForUpdate has its own connection, and some checks have hundreds at once.
func TestLongConformanceOfForUpdate(t *testing.T) {
	t.Parallel()
	srv := testserver.MariaDB(t, testserver.MariaDBOptions{Args: []string{"--max-connections=2000"}})
	url := srv.Database(t) + "?create=true&strategy=forupdate"
	drivertest.Run(t, drivertest.Harness{
		Open: func(ctx context.Context) (driver.Backend, error) { return Open(ctx, url) }, Parallel: 4,
	})
}

// A disconnected holder's trust ends before the server grants its lock to the next client.
func TestHolderIsCutOff(t *testing.T) {
	bothOnConnections(t, func(t *testing.T, s Strategy) {
		source, _ := freshDatabase(t, s)
		u := must.Get(url.Parse(source))(t)
		p := faultproxy.New(t, u.Host)
		u.Host = p.Addr()
		first, next := clientOf(t, connect(t, u.String())), clientOf(t, connect(t, source))
		lease := must.Get(first.Mutex("x", distlock.WithTTL(3*time.Second)).Lock(t.Context()))(t)
		p.Silence()
		ctx, cancel := context.WithTimeout(t.Context(), patient)
		defer cancel()
		other := must.Get(next.Mutex("x").Lock(ctx))(t)
		if lease.Err() == nil {
			t.Errorf("the first holder trusts its lock until %v, and the next one has it already", lease.Deadline())
		}
		if other.Fence() <= lease.Fence() {
			t.Errorf("fence %d after %d", other.Fence(), lease.Fence())
		}
	})
}

func clientOf(t *testing.T, b driver.Backend) *distlock.Client {
	t.Helper()
	c := must.Get(distlock.New(b, locktest.Patient()))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

// Cancelled waits leave no session behind that takes the lock.
func TestCancelledWaitersLeaveNoOrphans(t *testing.T) {
	bothOnConnections(t, func(t *testing.T, s Strategy) {
		source, db := freshDatabase(t, s)
		holder, waiters := connect(t, source), clientOf(t, connect(t, source))
		r := request("x", long)
		take(t, holder, r)
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(10+5*i)*time.Millisecond)
				defer cancel()
				if l, err := waiters.Mutex("x").Lock(ctx); err == nil {
					l.Unlock(t.Context()) // granted when the holder released
				}
			})
		}
		time.AfterFunc(100*time.Millisecond, func() { holder.Release(context.Background(), r.Hold) })
		wg.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), patient)
		defer cancel()
		l, err := clientOf(t, connect(t, source)).Mutex("x").Lock(ctx)
		if err != nil {
			t.Fatalf("the lock is free, and an attempt fails: %v", err)
		}
		if err := l.Unlock(ctx); err != nil {
			t.Error(err)
		}
		if n := ask(t, db, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE 'SELECT GET_LOCK%' AND DB = DATABASE()"); n > 0 {
			t.Errorf("%d statements still wait", n)
		}
	})
}

// A late attempt at a name that was never locked before is refused as soon as for any other name.
func TestFirstLocksOfANameDoNotWait(t *testing.T) {
	url, _ := freshDatabase(t, ForUpdate)
	var all []*Backend
	for range 4 {
		all = append(all, connect(t, url))
	}
	for i := range 20 {
		name := fmt.Sprint("first/", i)
		var wg sync.WaitGroup
		for _, b := range all {
			wg.Go(func() {
				began := time.Now()
				_, err := b.Acquire(t.Context(), request(name, time.Hour))
				if took := time.Since(began); took > 45*time.Second || err != nil && !errors.Is(err, driver.ErrHeld) { // InnoDB waits for 50 s
					t.Errorf("%s: after %v: %v", name, took, err)
				}
			})
		}
		wg.Wait()
	}
}

// bothOnConnections runs a test for each strategy that holds connections.
func bothOnConnections(t *testing.T, test func(t *testing.T, s Strategy)) {
	for _, s := range []Strategy{Session, ForUpdate} {
		t.Run(string(s), func(t *testing.T) {
			t.Parallel()
			test(t, s)
		})
	}
}

// A restarted server reuses connection numbers. The backend must not kill other clients' connections
// that have the numbers of its old ones.
func TestRestartedServerKillsNobodyElse(t *testing.T) {
	t.Parallel()
	srv := testserver.MariaDB(t, testserver.MariaDBOptions{})
	url := srv.Database(t)
	backends := map[*Backend]driver.Request{}
	var lost sync.WaitGroup
	for _, s := range []Strategy{Session, ForUpdate} {
		b, r := connect(t, url+"?create=true&strategy="+string(s)), request("x", long)
		lost.Add(1)
		r.OnLost = lost.Done
		take(t, b, r)
		backends[b] = r
	}
	srv.Kill()
	lost.Wait()
	srv.Start()
	db := srv.DB(t, url)
	var others []*sql.Conn
	for range 60 {
		c := must.Get(db.Conn(t.Context()))(t)
		defer c.Close()
		others = append(others, c)
	}
	for b, r := range backends {
		wantIs(t, b.Release(t.Context(), r.Hold), driver.ErrLost)
	}
	for i, c := range others {
		if _, err := c.ExecContext(t.Context(), "DO 1"); err != nil {
			t.Errorf("another client's connection %d: %v", i, err)
		}
	}
}

// Kill ends the connection that has a mark. After a failover, the number that the connection had may be
// another client's.
func TestKillEndsTheMarkedConnection(t *testing.T) {
	t.Parallel()
	b, db, _ := forUpdateHold(t)
	for _, marked := range []bool{false, true} {
		conn := must.Get(db.Conn(t.Context()))(t)
		defer conn.Close()
		mark, id := driver.NewOwner(), ""
		must.OK(t, conn.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&id))
		killed, seconds := id+"/1", "2"
		if marked {
			killed, seconds = mark, "60"
		}
		slept := make(chan error, 1)
		go func() {
			slept <- conn.QueryRowContext(context.Background(), "SELECT GET_LOCK("+markLock(mark)+", 0) + SLEEP("+seconds+")").Scan(new(int))
		}()
		until(t, "the statement runs", func() bool {
			return ask(t, db, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = 'User sleep' AND ID = "+id) > 0
		})
		if err := b.strategy.(*connlock.Backend).Dialect.Kill(t.Context(), killed); err != nil {
			t.Error(err)
		}
		if err := <-slept; (err != nil) != marked {
			t.Errorf("marked: %v; the statement: %v", marked, err)
		}
	}
}

// The smallest pool that a strategy accepts always has a connection for other calls.
func TestSmallestPool(t *testing.T) {
	const least = 2
	bothOnConnections(t, func(t *testing.T, s Strategy) {
		srv := testserver.SharedMariaDB(t)
		db := srv.DB(t, srv.Database(t))
		ctx, cancel := context.WithTimeout(t.Context(), patient)
		defer cancel()
		db.SetMaxOpenConns(least - 1)
		if b, err := New(ctx, db, &Options{Strategy: s, Create: true}); !errors.Is(err, driver.ErrInvalid) {
			t.Fatalf("with %d connections: %v, %v; want ErrInvalid", least-1, b, err)
		}
		db.SetMaxOpenConns(least)
		b := must.Get(New(ctx, db, &Options{Strategy: s, Create: true}))(t)
		defer b.Close()
		ping := func() error {
			soon, cancel := context.WithTimeout(ctx, 8*time.Second) // spare connections are kept longer
			defer cancel()
			return db.PingContext(soon)
		}
		if err := ping(); err != nil {
			t.Errorf("after New: %v", err)
		}
		r := request("x", 30*time.Second)
		take(t, b, r)
		if err := ping(); err != nil {
			t.Errorf("beside a hold: %v", err)
		}
		if err := b.Release(t.Context(), r.Hold); err != nil {
			t.Error(err)
		}
	})
}

func forUpdateHold(t *testing.T) (*Backend, *sql.DB, driver.Request) {
	t.Helper()
	srv := testserver.SharedMariaDB(t)
	db := srv.DB(t, srv.Database(t))
	b := must.Get(New(t.Context(), db, &Options{Strategy: ForUpdate, Create: true}))(t)
	t.Cleanup(func() { b.Close() })
	must.Get(db.ExecContext(t.Context(), "CREATE TABLE work (n INT) ENGINE=InnoDB"))(t)
	r := driver.Request{Hold: driver.Hold{Name: "report", Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: 30 * time.Second}, Fences: 1}
	must.Get(b.Acquire(t.Context(), r))(t)
	return b, db, r
}

func stored(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	must.OK(t, db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM work").Scan(&n))
	return n
}

func TestCommitStoresTheWorkAndEndsTheLock(t *testing.T) {
	b, db, r := forUpdateHold(t)
	work := func(tx *sql.Tx) error {
		_, err := tx.ExecContext(t.Context(), "INSERT INTO work VALUES (1)")
		return err
	}
	must.OK(t, b.Commit(t.Context(), r.Owner, work))
	if n := stored(t, db); n != 1 {
		t.Errorf("%d rows stored, want 1", n)
	}
	if err := b.Commit(t.Context(), r.Owner, work); !errors.Is(err, driver.ErrLost) {
		t.Errorf("a second Commit: %v, want ErrLost", err)
	}
	if err := b.Release(t.Context(), r.Hold); err != nil {
		t.Errorf("Release after Commit: %v", err)
	}
	r.Owner = driver.NewOwner()
	if _, err := b.Acquire(t.Context(), r); err != nil {
		t.Errorf("the lock has not ended with the commit: %v", err)
	}
}

// Releases of a committed lock leave its connection alone, which may have another lock by then.
func TestReleasesAfterACommit(t *testing.T) {
	b, _, a := forUpdateHold(t)
	must.OK(t, b.Commit(t.Context(), a.Owner, func(*sql.Tx) error { return nil }))
	next := request("next", a.TTL)
	take(t, b, next)
	if err := b.Release(t.Context(), a.Hold); err != nil {
		t.Error(err)
	}
	wantIs(t, b.Release(t.Context(), a.Hold), driver.ErrLost)
	renews(t, b, next, nil)
}

// MySQL 5.7 has no NOWAIT. The short timeout of an attempt ends before the caller's work.
func TestWorkWaitsForRowsInMySQL57(t *testing.T) {
	b, db, _ := forUpdateHold(t)
	b.strategy.(*connlock.Backend).Dialect.(*connDialect).server = server{major: 5, minor: 7}
	r := request("next", 30*time.Second)
	take(t, b, r)
	var timeout int64
	must.OK(t, b.Commit(t.Context(), r.Owner, func(tx *sql.Tx) error {
		return tx.QueryRowContext(t.Context(), "SELECT @@SESSION.innodb_lock_wait_timeout").Scan(&timeout)
	}))
	if want := ask(t, db, "SELECT @@GLOBAL.innodb_lock_wait_timeout"); timeout != want {
		t.Errorf("the work waits for rows for %d s, want %d s", timeout, want)
	}
}

func TestCommitRollsBackWorkThatFails(t *testing.T) {
	b, db, r := forUpdateHold(t)
	refused := errors.New("no")
	err := b.Commit(t.Context(), r.Owner, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(t.Context(), "INSERT INTO work VALUES (1)"); err != nil {
			return err
		}
		return refused
	})
	if !errors.Is(err, refused) || stored(t, db) != 0 {
		t.Errorf("%v, and %d rows stored; want the work's error and none", err, stored(t, db))
	}
	if err := b.Release(t.Context(), r.Hold); err != nil {
		t.Errorf("Release after Commit: %v", err)
	}
}

func TestNothingIsStoredOfWorkWhoseConnectionIsKilled(t *testing.T) {
	b, db, r := forUpdateHold(t)
	var lost atomic.Int32
	r.OnLost = func() { lost.Add(1) }
	must.Get(b.Acquire(t.Context(), r))(t)
	err := b.Commit(t.Context(), r.Owner, func(tx *sql.Tx) error {
		var id string
		if err := tx.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&id); err != nil {
			return err
		}
		if _, err := tx.ExecContext(t.Context(), "INSERT INTO work VALUES (1)"); err != nil {
			return err
		}
		_, err := db.ExecContext(t.Context(), "KILL "+id)
		return err
	})
	if err == nil || stored(t, db) != 0 {
		t.Errorf("%v, and %d rows stored; want an error and none", err, stored(t, db))
	}
	if err := b.Commit(t.Context(), r.Owner, func(*sql.Tx) error { t.Error("the work has begun"); return nil }); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Commit without the lock: %v, want ErrLost", err)
	}
}

func TestKilledConnectionsAreToldSoon(t *testing.T) {
	b, db, r := forUpdateHold(t)
	lost := make(chan struct{})
	r.OnLost = func() { close(lost) }
	must.Get(b.Acquire(t.Context(), r))(t)
	var id string
	must.OK(t, db.QueryRowContext(t.Context(), "SELECT trx_mysql_thread_id FROM information_schema.INNODB_TRX JOIN information_schema.PROCESSLIST ON ID = trx_mysql_thread_id WHERE DB = DATABASE()").Scan(&id))
	must.Get(db.ExecContext(t.Context(), "KILL "+id))(t)
	select {
	case <-lost:
	case <-time.After(patient):
		t.Error("OnLost was not called, though the server has closed the connection")
	}
	if errs := b.Renew(t.Context(), []driver.Hold{r.Hold}); !errors.Is(errs[0], driver.ErrLost) {
		t.Errorf("Renew: %v, want ErrLost", errs[0])
	}
}

func TestASmallPoolIsRefused(t *testing.T) {
	srv := testserver.SharedMariaDB(t)
	db := srv.DB(t, srv.Database(t))
	db.SetMaxOpenConns(1)
	if b, err := New(t.Context(), db, &Options{Strategy: Session, Create: true}); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("%v, %v; want ErrInvalid", b, err)
	}
}

func TestAPoolKeepsAConnectionForOthers(t *testing.T) {
	srv := testserver.SharedMariaDB(t)
	db := srv.DB(t, srv.Database(t))
	db.SetMaxOpenConns(3)
	b := must.Get(New(t.Context(), db, &Options{Strategy: ForUpdate, Create: true}))(t)
	defer b.Close()
	for i, name := range []string{"a", "b", "c"} {
		r := driver.Request{Hold: driver.Hold{Name: name, Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: 30 * time.Second}, Fences: 1}
		if _, err := b.Acquire(t.Context(), r); (err == nil) != (i < 2) || driver.Final(err) || errors.Is(err, driver.ErrHeld) {
			t.Errorf("hold %d of a pool of 3: %v", i+1, err)
		}
	}
	if err := db.PingContext(t.Context()); err != nil {
		t.Error(err)
	}
}

// A server that has no connection left says so, and what a lock needs.
func TestNoConnectionIsLeft(t *testing.T) {
	bothOnConnections(t, func(t *testing.T, s Strategy) {
		user, admin := userOf(t, s)
		b := connect(t, user)
		take(t, b, request("a", long))
		admin.do("ALTER USER " + admin.user + " WITH MAX_USER_CONNECTIONS 1")
		var err error
		for i := 0; i < 8 && err == nil; i++ { // some connections are open
			_, err = b.Acquire(t.Context(), request(fmt.Sprint("b", i), long))
		}
		if err == nil || driver.Final(err) || !strings.Contains(err.Error(), "each lock and each waiter needs one of its own") && !strings.Contains(err.Error(), "which another connection writes") {
			t.Error(err)
		}
		admin.do("ALTER USER " + admin.user + " WITH MAX_USER_CONNECTIONS 0")
		takeAtLast(t, b, request("c", long))
	})
}

// An attempt that a proxy has sent to another session takes nothing.
func TestSessionsThatAreMixedUp(t *testing.T) {
	bothOnConnections(t, func(t *testing.T, s Strategy) {
		url, _ := freshDatabase(t, s)
		b := connect(t, url)
		d := b.strategy.(*connlock.Backend).Dialect
		c := must.Get(d.NewConn(t.Context(), must.Get(b.database.db.Conn(t.Context()))(t), time.Minute))(t)
		defer c.Close()
		switch c := c.(type) {
		case *sessionConn:
			c.mark, c.thread = c.mark+"0", "0"
		case *forUpdateConn:
			c.mark += "0"
		}
		for what, err := range map[string]error{
			"Ping":    c.Ping(t.Context()),
			"TryLock": func() error { _, _, err := c.TryLock(t.Context(), connlock.Lock{Name: "x"}); return err }(),
		} {
			if !errors.Is(err, errAnother) {
				t.Errorf("%s: %v", what, err)
			}
		}
		c.Close()
		take(t, b, request("x", long))
	})
}

// MySQL rolls back a deadlock's victim and goes on in a new transaction, which does not have the lock.
// Work that ignores the error stores nothing.
func TestCommitAfterADeadlockStoresNothing(t *testing.T) {
	b, db, r := forUpdateHold(t)
	do(t, db, "CREATE TABLE pair (n INT PRIMARY KEY, v INT) ENGINE=InnoDB", "INSERT INTO pair VALUES (1, 0), (2, 0)")
	err := b.Commit(t.Context(), r.Owner, func(tx *sql.Tx) error {
		ctx, cancel := context.WithTimeout(t.Context(), patient)
		defer cancel()
		deadlock(t, ctx, db, tx)
		_, err := tx.ExecContext(ctx, "INSERT INTO work VALUES (1)")
		return err
	})
	wantIs(t, err, driver.ErrLost)
	if n := stored(t, db); n != 0 {
		t.Errorf("%d rows stored without the lock", n)
	}
	r.Owner = driver.NewOwner()
	take(t, b, r)
}

// deadlock makes tx the victim of a deadlock with another transaction that has written more.
func deadlock(t *testing.T, ctx context.Context, db *sql.DB, tx *sql.Tx) {
	rival := must.Get(db.BeginTx(ctx, nil))(t)
	defer rival.Rollback()
	exec := func(tx *sql.Tx, text string) {
		if _, err := tx.ExecContext(ctx, text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	for range 50 {
		exec(rival, "INSERT INTO work VALUES (2)")
	}
	exec(rival, "UPDATE pair SET v = 1 WHERE n = 1")
	if _, err := tx.ExecContext(ctx, "SELECT v FROM pair WHERE n = 2 FOR UPDATE"); err != nil {
		t.Error(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); exec(rival, "UPDATE pair SET v = 2 WHERE n = 2") }()
	_, err := tx.ExecContext(ctx, "SELECT v FROM pair WHERE n = 1 FOR UPDATE")
	<-done
	if number(err) != errDeadlock {
		t.Errorf("%v; want a deadlock", err)
	}
}

// Commit returns ErrLost if the work ended the transaction itself.
func TestCommitOfWorkThatHasCommitted(t *testing.T) {
	for _, end := range []string{"COMMIT", "ROLLBACK", "CREATE TABLE another (n INT)"} {
		t.Run(end, func(t *testing.T) {
			b, _, r := forUpdateHold(t)
			err := b.Commit(t.Context(), r.Owner, func(tx *sql.Tx) error {
				_, err := tx.ExecContext(t.Context(), end)
				return err
			})
			wantIs(t, err, driver.ErrLost)
		})
	}
}

// One table is one set of locks, by whatever name it is known, and whatever the server was called when it was opened: a
// client that opened before a failover excludes those that open after it.
func TestLocksOfATableWithSeveralNames(t *testing.T) {
	t.Parallel()
	for _, s := range []Strategy{ForUpdate, Session} {
		url, db := freshDatabase(t, s)
		var schema string
		must.OK(t, db.QueryRow("SELECT DATABASE()").Scan(&schema))
		one := connect(t, url)
		take(t, one, request("x", long))
		other := connect(t, url+"&table="+schema+"."+one.database.opts.Table)
		if _, err := other.Acquire(t.Context(), request("x", long)); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("%s: the same table by another name: %v", s, err)
		}
		after := *one.database
		after.name = "mysql://another-host:3306/"
		if a, b := (&connDialect{database: one.database}).key("x"), (&connDialect{database: &after}).key("x"); a != b {
			t.Errorf("%s: another key after a failover: %s, then %s", s, a, b)
		}
	}
}
