package pglock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// refused wants Open to fail for good, with these words.
func refused(t *testing.T, rawURL string, says ...string) {
	t.Helper()
	locktest.OpenFails(t, Open, rawURL, true, says...)
}

func wantRefusal(t *testing.T, err error, says ...string) {
	t.Helper()
	locktest.Fails(t, "refused", err, true, says...)
}

func TestOpenRefusesWhatMakesNoSense(t *testing.T) {
	for rawURL, says := range map[string]string{
		"mysql://h/db":                                        "postgres://user",
		"postgres://h/db?strategy=column":                     "one of row, advisory",
		"postgres://h/db?level=session":                       "no parameter level: remove it",
		"postgres://h/db?strategy=advisory&level=transaction": "no parameter level: remove it; with strategy=advisory Commit needs none",
		"postgres://h/db?table=drop%20table":                  "letters, digits and underscores",
		"postgres://h/db?table=a.b.c":                         "letters, digits and underscores",
		"postgres://h/db?table=" + strings.Repeat("x", 64):    "63 at most",
		"postgres://h/db?create=perhaps":                      "want true or false",
		"postgres://h/db?create=true&create=false":            "given 2 times",
		"postgres://u:s3cret@h/db?sslmode=sometimes":          "sslmode",
		"postgres://u:s3cret@h/db?sslrootcert=/none/such":     "failed to configure TLS",
		"postgres://u:s3cret@h/db?target_session_attrs=up":    "target_session_attrs",
		"postgres://u:s3cret@a,b:1,c:2/db?port=1,2":           "port",
		"postgres://u:s3cret/x@h/db":                          "URL",
		"postgres://u:s3cret@h:port/db":                       "URL",
	} {
		t.Run(rawURL, func(t *testing.T) { refused(t, rawURL, says) })
	}
}

func TestOpenRefusesStrangers(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	db := pg.Database(t)
	user := pg.User(t, db, "s3cret")
	wrong := must.Get(url.Parse(user))(t)
	wrong.User = url.UserPassword(wrong.User.Username(), "s3cretly")
	refused(t, wrong.String(), "password is wrong, or has expired")
	refused(t, strings.Replace(user, wrong.User.Username()+":", "nobody:", 1), "not let in")
	refused(t, strings.Replace(user, "?", "_none?", 1), "database does not exist")
	refused(t, with(t, user, "colour", "red"), "neither distlock's, pgx's nor the server's")
	refused(t, with(t, user, "work_mem", "much"), "has a value that the server does not take")
	pg.Expire(t, user)
	refused(t, user, "password is wrong, or has expired")
}

// An error of Open says what was wrong in the server's words or the system's, not in those of pgx.
func TestWordsOfErrors(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	user := pg.User(t, pg.Database(t), "s3cret")
	addr := must.Get(url.Parse(user))(t).Host
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	away := l.Addr().String()
	l.Close()
	for what, c := range map[string]struct{ url, want string }{
		"port":        {strings.Replace(user, addr, away, 1), "^dial tcp " + away + ": .*refused$"},
		"two ports":   {strings.Replace(user, addr, away+","+away, 1), "^dial tcp " + away + ": .*refused$"},
		"host":        {strings.Replace(user, addr, "host.invalid", 1), "^lookup host.invalid"},
		"no TLS":      {strings.Replace(user, "=disable", "=require", 1), "^" + addr + ": server refused TLS connection$"},
		"password":    {strings.Replace(user, "s3cret", "s3cretly", 1), ": the user is not let in: .*: " + addr + ": FATAL: password"},
		"without TLS": {strings.NewReplacer("s3cret", "s3cretly", "=disable", "=prefer").Replace(user), `VALID UNTIL\): ` + addr + ": FATAL: password"},
		"database":    {strings.Replace(user, "?", "_none?", 1), ": the database does not exist: " + addr + ": FATAL: database"},
		"parameter":   {with(t, user, "work_mem", "much"), "server does not take: " + addr + ": FATAL: invalid value"},
	} {
		_, err := Open(t.Context(), c.url)
		text, ours := strings.CutPrefix(fmt.Sprint(err), "pglock: open: ")
		if !ours || !regexp.MustCompile(c.want).MatchString(text) {
			t.Errorf("%s: %v; want %s", what, err, c.want)
		}
	}
}

func TestOpenOfAServerThatIsAway(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	addr := l.Addr().String()
	hangs := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err := Open(ctx, "postgres://u:s3cret@"+addr+"/db?sslmode=disable") // no server answers
		hangs <- err
	}()
	if err := <-hangs; !errors.Is(err, context.DeadlineExceeded) || driver.Final(err) {
		t.Errorf("no answer: %v", err)
	}
	l.Close()
	_, err := Open(t.Context(), "postgres://u:s3cret@"+addr+"/db?sslmode=disable")
	locktest.Fails(t, "no server", err, false, "refused")
}

func TestOpenRefusesAReplica(t *testing.T) {
	t.Parallel()
	pg := testserver.Postgres(t, testserver.PostgresOptions{})
	standby := pg.Standby(t)
	refused(t, standby.URL(), "replica", "target_session_attrs=read-write")
	both := strings.Replace(standby.URL(), "@"+standby.Addr(), "@"+standby.Addr()+","+pg.Addr(), 1)
	b := open(t, both+"&create=true&target_session_attrs=read-write")
	if name := b.Caps().Name; !strings.Contains(name, standby.Addr()) || !strings.Contains(name, pg.Addr()) {
		t.Errorf("name %s", name)
	}
}

// The connections of a user's own pool are not set.
func TestNewRefusesReadOnlyTransactions(t *testing.T) {
	t.Parallel()
	plain := testserver.SharedPostgres(t).Database(t)
	wantRefusal(t, newOnHandle(t, with(t, plain, "default_transaction_read_only", "on")), "read-only", "default_transaction_read_only=off")
	wantRefusal(t, newOnHandle(t, with(t, plain, "client_encoding", "LATIN1")), "client_encoding=LATIN1")
}

func newOnHandle(t *testing.T, rawURL string) error {
	b, err := New(t.Context(), testserver.SharedPostgres(t).DB(t, rawURL), &Options{Create: true})
	if err == nil {
		b.Close()
	}
	return err
}

func TestOpenRefusesOtherEncodings(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	pg.Exec(t, "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
	refused(t, strings.Replace(pg.URL(), "/postgres?", "/latin?", 1), "LATIN1", "want UTF8")
}

func TestServersTooOldAreRefused(t *testing.T) {
	old := serverFacts{version: 11_22_00, encoding: "UTF8", client: "UTF8"}
	wantRefusal(t, old.check(), "want 12 or later")
	old.version = 12_00_00
	expect.OK(t, old.check())
}

func TestTableIsMade(t *testing.T) {
	t.Parallel()
	db := testserver.SharedPostgres(t).Database(t)
	refused(t, db, "distlock_locks does not exist", "distlock schema postgres", "create=true")
	var many sync.WaitGroup
	for range 16 {
		many.Go(func() {
			b, err := Open(t.Context(), with(t, db, "create", "true"))
			if err != nil {
				t.Error(err)
				return
			}
			b.Close()
		})
	}
	many.Wait()
	open(t, db)
}

// PostgreSQL 15 lets a plain user create no tables in schema public.
func TestRightsThatAreMissing(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	db := pg.Database(t)
	user := with(t, pg.User(t, db, "s3cret"), "create", "true")
	refused(t, user, "CREATE ON SCHEMA")
	refused(t, with(t, user, "table", "elsewhere.locks"), "schema does not exist")
	open(t, with(t, db, "create", "true"))
	refused(t, user, "may not use table distlock_locks", "GRANT SELECT, INSERT, UPDATE ON")
	refused(t, pg.User(t, db, "s3cret", "SELECT, INSERT ON distlock_locks"), "GRANT UPDATE ON")
	open(t, pg.User(t, db, "s3cret", "SELECT, INSERT, UPDATE ON distlock_locks"))
}

func TestTablesOfAnotherShape(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	url := pg.Database(t)
	db := pg.DB(t, url)
	for i, c := range []struct{ change, says string }{
		{"ALTER TABLE {t} DROP COLUMN version", "column version is missing"},
		{"ALTER TABLE {t} ALTER COLUMN until TYPE integer", "column until is of type integer, want bigint"},
		{"ALTER TABLE {t} ADD COLUMN team text NOT NULL", "column team is not distlock's"},
		{"ALTER TABLE {t} DROP CONSTRAINT {t}_pkey", "column k has no unique index"},
		{"ALTER TABLE {t} SET UNLOGGED", "UNLOGGED"},
		{"DROP TABLE {t}; CREATE VIEW {t} AS SELECT 1 AS k", "no ordinary table"},
	} {
		table := fmt.Sprintf("t%d", i)
		statements := Schema(Options{Table: table}) + strings.ReplaceAll(c.change, "{t}", table)
		must.OK(t, expect.Err(db.Exec(statements)), statements)
		refused(t, with(t, url, "table", table, "create", "true"), table, c.says)
	}
	must.Get(db.Exec(Schema(Options{Table: "more"}) + "ALTER TABLE more ADD COLUMN team text NOT NULL DEFAULT ''"))(t)
	open(t, with(t, url, "table", "more"))
}

func TestRowsThatAreHidden(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	url := with(t, pg.Database(t), "create", "true")
	open(t, url)
	must.Get(pg.DB(t, url[:strings.Index(url, "?")]+"?sslmode=disable").Exec("ALTER TABLE distlock_locks ENABLE ROW LEVEL SECURITY"))(t)
	refused(t, pg.User(t, url, "s3cret", "SELECT, INSERT, UPDATE ON distlock_locks"), "row level security")
}

// The table may be in a schema, and its name may have capitals.
func TestTableNames(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	url := pg.Database(t)
	must.Get(pg.DB(t, url).Exec(`CREATE SCHEMA "App"`))(t)
	open(t, with(t, url, "table", "App.Locks", "create", "true"))
	open(t, with(t, url, "table", "App.Locks"))
	open(t, with(t, url, "table", "Locks", "search_path", `"App"`))
}

func TestNames(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	plain := pg.Database(t)
	url := with(t, plain, "create", "true")
	want := open(t, url).Caps().Name
	db := must.Get(sql.Open("pgx", plain))(t)
	defer db.Close()
	pool := must.Get(pgxpool.New(t.Context(), plain))(t)
	defer pool.Close()
	one := must.Get(New(t.Context(), db, nil))(t)
	other := must.Get(NewPool(t.Context(), pool, nil))(t)
	for _, b := range []*Backend{one, other} {
		if got := b.Caps().Name; got != want || !strings.HasPrefix(got, "postgres://"+pg.Addr()+"/") {
			t.Errorf("%s, want %s", got, want)
		}
		expect.OK(t, b.Close())
	}
	expect.OK(t, errors.Join(db.Ping(), pool.Ping(t.Context())), "the user's own was closed")
}

func TestNewRefusesNothing(t *testing.T) {
	_, err := New(t.Context(), nil, nil)
	wantRefusal(t, err, "nil")
	_, err = NewPool(t.Context(), nil, nil)
	wantRefusal(t, err, "nil")
}

// Open detects a pooler that the URL does not declare, in any mode.
func TestPoolersMustBeDeclared(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	plain := pg.Database(t)
	url := with(t, plain, "create", "true")
	for mode, pooler := range map[string]Pooler{"transaction": TransactionPooler, "statement": TransactionPooler, "session": SessionPooler} {
		via := testserver.PgBouncer(t, pg, testserver.PgBouncerOptions{Mode: mode}).Via(url)
		for _, strategy := range []Strategy{Row, Advisory} {
			refused(t, with(t, via, "strategy", string(strategy)), "pooler=session", "pooler=transaction")
		}
		everything(t, open(t, with(t, via, "pooler", string(pooler))))
		if pooler == SessionPooler {
			open(t, with(t, via, "pooler", string(pooler), "strategy", "advisory"))
		}
	}
	refused(t, with(t, url, "pooler", "transaction", "strategy", "advisory"), "such a pooler", "strategy row")
	refused(t, with(t, url, "pooler", "yes"), "want session or transaction")
}

// Open detects no pooler with a driver other than pgx, so advisory locks need the user's declaration.
func TestAdvisoryWithAnotherDriverNeedsAWordOfPoolers(t *testing.T) {
	t.Parallel()
	db := sql.OpenDB(plainConnector{stdlib.GetConnector(*mustConfig(t, testserver.SharedPostgres(t).Database(t)))})
	defer db.Close()
	_, err := New(t.Context(), db, &Options{Strategy: Advisory, Create: true})
	wantRefusal(t, err, "pooler=session")
}

// Statements mean the same in every query mode of pgx.
func TestModesOfPgx(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			everything(t, open(t, with(t, fresh(t), "default_query_exec_mode", mode)))
		})
	}
}

// everything runs each statement of strategy Row.
func everything(t *testing.T, b *Backend) {
	t.Helper()
	mine, theirs := request(`it's "a" \ lock, 100 %`), request(`it's "a" \ lock, 100 %`)
	mine.Meta = map[string]string{"host": `h'"\`}
	g := take(t, b, mine)
	mine.Floor = g.Last() + 1<<20
	expect.OK(t, errors.Join(b.Renew(t.Context(), []driver.Hold{mine.Hold})...), "renew")
	theirs.Queue = true
	held(t, b, theirs)
	w := must.Get(b.Watch(t.Context(), theirs))(t)
	defer w.Close()
	info, err := b.Inspect(t.Context(), mine.Name)
	if err != nil || len(info.Holders) != 1 || info.Holders[0].Meta["host"] != mine.Meta["host"] || len(info.Waiters) != 1 {
		t.Errorf("inspect: %+v, %v", info, err)
	}
	var names []string
	err = b.List(t.Context(), "it's", func(name string) bool { names = append(names, name); return true })
	if err != nil || len(names) != 1 || names[0] != mine.Name {
		t.Errorf("list: %q, %v", names, err)
	}
	release(t, b, mine)
	ready(t, w)
	if next := take(t, b, theirs); next.Fence <= mine.Floor {
		t.Errorf("fence %d, want more than %d", next.Fence, mine.Floor)
	}
	release(t, b, theirs)
	permit := request("permits")
	permit.Mode, permit.Limit = driver.Counted, 2
	take(t, b, permit)
	release(t, b, permit)
}

// plainConnector looks like a driver other than pgx: it prepares, and accepts only database/sql's
// types.
type plainConnector struct{ sqldriver.Connector }

type plainConn struct{ sqldriver.Conn }

func (c plainConnector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	return plainConn{conn}, err
}

func TestAnotherDriver(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	url := pg.Database(t)
	db := sql.OpenDB(plainConnector{stdlib.GetConnector(*mustConfig(t, url))})
	defer db.Close()
	b := must.Get(New(t.Context(), db, &Options{Create: true}))(t)
	defer b.Close()
	everything(t, b)
	if n := sessions(t, pg, url, listening); n != "0" {
		t.Errorf("%s connections listen", n)
	}
}

// Three connections are reserved for administrators.
func TestFreeConnections(t *testing.T) {
	t.Parallel()
	pg := testserver.Postgres(t, testserver.PostgresOptions{Settings: []string{"max_connections=30"}})
	database := pg.Database(t)
	user := pg.User(t, database, "s3cret", "CREATE, USAGE ON SCHEMA public")
	b := open(t, with(t, user, "create", "true"))
	for _, want := range []int{25, 24} { // not counting the administrator's and the backend's own
		admin := must.Get(pg.DB(t, pg.URL()).Conn(t.Context()))(t)
		defer admin.Close()
		wantFree(t, b, want)
	}
	u := must.Get(url.Parse(user))(t)
	pg.Exec(t, fmt.Sprintf("ALTER ROLE %s CONNECTION LIMIT 7", u.User.Username()))
	wantFree(t, b, 6)
	u = must.Get(url.Parse(database))(t)
	pg.Exec(t, fmt.Sprintf("ALTER DATABASE %s CONNECTION LIMIT 4", u.Path[1:]))
	wantFree(t, b, 3)
}

func wantFree(t *testing.T, b *Backend, want int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d connections are free", want), func() bool {
		free := must.Get(b.FreeConnections(t.Context()))(t)
		return free == want
	})
}

func TestMaxConnections(t *testing.T) {
	t.Parallel()
	url := with(t, testserver.SharedPostgres(t).Database(t), "create", "true")
	if n := open(t, with(t, url, "max_connections", "5")).database.db.Stats().MaxOpenConnections; n != 5 {
		t.Errorf("the pool's limit is %d, want 5", n)
	}
	for _, wrong := range []string{"0", "-1", "many"} {
		if _, err := Open(t.Context(), with(t, url, "max_connections", wrong)); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("max_connections=%s: %v, want ErrInvalid", wrong, err)
		}
	}
}
