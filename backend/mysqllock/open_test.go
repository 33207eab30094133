package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// says wants Open to fail for good, with these words.
func says(t *testing.T, rawURL string, words ...string) {
	t.Helper()
	locktest.OpenFails(t, Open, rawURL, true, words...)
}

// secret is the password of users in these tests.
const secret = "hunter2-hunter2"

func TestURLsRefused(t *testing.T) {
	for u, words := range map[string]string{
		"redis://localhost":                              "mysql://user:password@localhost:3306/app",
		"mysql://u:" + secret + "@h":                     "name of a database",
		"mysql://u:" + secret + "@h/a/b":                 "name of a database",
		"mysql://u:" + secret + "@h1,h2/app":             "one host",
		"mysql:app":                                      "two slashes",
		"mysql://h:0/app":                                "1 to 65535",
		"mysql://u:" + secret + "@h/app?strategy=best":   "one of row, forupdate, session",
		"mysql://h/app?strategy=unique":                  "use row, which is the same: its row stands under a unique key",
		"mysql://h/app?strategy=version":                 "use row, which is the same: its row is taken by compare-and-set",
		"mysql://h/app?parsetime=true":                   `unknown parameter "parsetime"`,
		"mysql://h/app?charset=latin1":                   "known: ",
		"mysql://h/app?multistatements=true":             "allowCleartextPasswords",
		"mysql://h/app?allowNativePasswords=true":        "known: ",
		"mysql://h/app?table=a-b":                        "letters, digits and underscores",
		"mysql://h/app?table=a.b.c":                      "letters, digits and underscores",
		"mysql://h/app?table=" + strings.Repeat("x", 65): "at most 64",
		"mysql://h/app?create=maybe":                     "true or false",
		"mysql://h/app?timeout=5":                        "positive duration",
		"mysql://h/app?tls=yes":                          "one of false, true, skip-verify, preferred",
		"mysql://h/app?ca=/x.pem":                        "tls=true",
		"mysql://h/app?tls=true&ca=/none.pem":            "none.pem",
		"mysql://h/app?socket=/run/mysqld/mysqld.sock":   "a host or a socket",
		"mysql://u:" + secret + "/x@h/app":               "%-encoded",
		"mysql://u:" + secret + "?x@h/app":               "%-encoded",
	} {
		says(t, u, words)
	}
}

func TestOptionsRefused(t *testing.T) {
	db := must.Get(sql.Open("mysql", "tcp(127.0.0.1:1)/app"))(t)
	defer db.Close()
	for _, o := range []Options{{Strategy: "best"}, {Strategy: "unique"}, {Table: "a b"}} {
		_, err := New(t.Context(), db, &o)
		wantIs(t, err, driver.ErrInvalid)
	}
	_, err := New(t.Context(), nil, nil)
	wantIs(t, err, driver.ErrInvalid)
}

func TestUnreachable(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close() // accepts connections and sends nothing
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := Open(ctx, "mysql://u:"+secret+"@"+l.Addr().String()+"/app")
	expect.Be(t, err, context.DeadlineExceeded)
	locktest.Fails(t, "a silent server", err, false, "mysqllock: open")
	locktest.OpenFails(t, Open, "mysql://u:"+secret+"@127.0.0.1:1/app", false, "refused")
}

func TestUsersRefused(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedMariaDB(t)
	admin := srv.Database(t)
	name := databaseOf(t, admin)
	user := srv.User(t, admin, secret, "SELECT, INSERT, UPDATE, DELETE ON "+name+".*")

	says(t, with(t, user, func(u *url.URL) { u.User = url.UserPassword(u.User.Username(), secret+"x") }), "refuses user and password")
	says(t, with(t, admin, func(u *url.URL) { u.Path = "/nowhere" }), "no such database")
	says(t, with(t, user, func(u *url.URL) { u.Path = "/mysql" }), "may not use this database")
	says(t, user+"?strategy=session", "table distlock_sessions is missing", "distlock schema mysql --strategy session", "create=true")
	says(t, user+"?create=true", "may not create tables", "GRANT CREATE")

	connect(t, admin+"?create=true")
	reader := srv.User(t, admin, secret, "SELECT ON "+name+".*")
	says(t, reader, "GRANT SELECT, INSERT, UPDATE ON distlock_locks")
	connect(t, user)

	srv.Expire(t, user)
	says(t, user, "expired")
}

func databaseOf(t *testing.T, rawURL string) string {
	t.Helper()
	u := must.Get(url.Parse(rawURL))(t)
	return strings.Trim(u.Path, "/")
}

func with(t *testing.T, rawURL string, change func(*url.URL)) string {
	t.Helper()
	u := must.Get(url.Parse(rawURL))(t)
	change(u)
	return u.String()
}

func TestReadOnlyServerRefused(t *testing.T) {
	t.Parallel()
	srv := testserver.MariaDB(t, testserver.MariaDBOptions{Args: []string{"--read-only=ON"}})
	says(t, srv.Database(t)+"?create=true", "read-only", "primary")
}

// A server that became a replica grants no lock, and the error says why.
func TestServerBecomesReadOnly(t *testing.T) {
	t.Parallel()
	srv := testserver.MariaDB(t, testserver.MariaDBOptions{})
	admin := srv.Database(t)
	connect(t, admin+"?create=true")
	b := rowOn(t, srv.DB(t, srv.User(t, admin, secret, "SELECT, INSERT, UPDATE ON "+databaseOf(t, admin)+".*")))
	r := request("x", long)
	take(t, b, r)
	srv.Exec(t, "SET GLOBAL read_only = 1")
	for _, err := range []error{b.Renew(t.Context(), []driver.Hold{r.Hold})[0], b.Release(t.Context(), r.Hold)} {
		if err == nil || driver.Final(err) || errors.Is(err, driver.ErrLost) {
			t.Errorf("on a replica: %v; want an unknown outcome", err)
		}
		locktest.Says(t, err, "read-only")
	}
	srv.Exec(t, "SET GLOBAL read_only = 0")
	expect.OK(t, b.Release(t.Context(), r.Hold), "on the primary again")
}

// locksWith returns the DDL of a table named locks, with one part replaced.
func locksWith(t *testing.T, s Strategy, old, new string) string {
	t.Helper()
	ddl := Schema(Options{Strategy: s, Table: "locks"})
	if strings.Count(ddl, old) != 1 {
		t.Fatalf("%q is not in %s once", old, ddl)
	}
	return strings.Replace(ddl, old, new, 1)
}

func TestTablesRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		s               Strategy
		old, new, words string
	}{
		{Row, "  void    BIGINT NOT NULL,", "--", "column void is missing"},
		{Row, "until   BIGINT", "until   DATETIME", "column until is datetime: want bigint"},
		{Row, "k       BINARY(32)", "k       INT", "column k is int: want binary or varbinary"},
		{Row, "k       BINARY(32)", "k       BINARY(33)", "column k is binary(33): want BINARY(32)"},
		{Row, "k       BINARY(32)", "k       VARBINARY(20)", "column k has room for 20 bytes: want 32"},
		{Row, "claims  MEDIUMBLOB", "claims  MEDIUMTEXT", "column claims is mediumtext"},
		{Row, "PRIMARY KEY (k)", "KEY (k)", "not the PRIMARY KEY"},
		{Row, "PRIMARY KEY (k)", "PRIMARY KEY (k(10))", "in full"},
		{Row, "PRIMARY KEY (k)", "PRIMARY KEY (k, until)", "by itself"},
		{Row, "PRIMARY KEY (k)", "id INT AUTO_INCREMENT PRIMARY KEY, UNIQUE (k)", "not the PRIMARY KEY"},
		{Row, ",\n  UNIQUE KEY gate (k)", "", "ALTER TABLE `locks` ADD UNIQUE KEY gate (k)"},
		{Row, "UNIQUE KEY gate (k)", "KEY gate (k)", "ALTER TABLE `locks` ADD UNIQUE KEY gate (k)"},
		{Row, "PRIMARY KEY", "tenant INT NOT NULL, PRIMARY KEY", "column tenant is of another program"},
		{Row, "ENGINE=InnoDB ROW_FORMAT=DYNAMIC", "ENGINE=MyISAM", "engine is MyISAM: want InnoDB"},
		{Session, "owner   VARBINARY(64)", "owner   VARBINARY(20)", "column owner has room for 20 bytes: want 64"},
		{ForUpdate, "name    MEDIUMBLOB", "name    INT", "column name is int"},
	} {
		u, db := freshDatabase(t, c.s)
		do(t, db, locksWith(t, c.s, c.old, c.new))
		says(t, u+"&table=locks", c.words, "table locks", "distlock schema mysql --strategy "+string(c.s))
	}
}

func TestViewRefused(t *testing.T) {
	t.Parallel()
	u, db := freshDatabase(t, Row)
	do(t, db, Schema(Options{Table: "real_locks"}), "CREATE VIEW locks AS SELECT * FROM real_locks")
	says(t, u+"&table=locks", "engine is VIEW")
}

// A table may have wider columns, and others that have a default.
func TestTableWithMore(t *testing.T) {
	t.Parallel()
	for _, s := range Strategies() {
		u, db := freshDatabase(t, s)
		do(t, db, locksWith(t, s, "PRIMARY KEY", "at TIMESTAMP NOT NULL DEFAULT NOW(), PRIMARY KEY"),
			"ALTER TABLE locks MODIFY name LONGBLOB, MODIFY k VARBINARY(99)")
		useBriefly(t, connect(t, u+"&table=locks"), string(s))
	}
}

// The server compares names of indexes without regard to case.
func TestGateInCapitals(t *testing.T) {
	t.Parallel()
	u, db := freshDatabase(t, Row)
	do(t, db, locksWith(t, Row, "UNIQUE KEY gate", "UNIQUE KEY GATE"))
	useBriefly(t, connect(t, u+"&table=locks"), "capitals")
}

// Pools with any session settings work.
func TestSessionsOfThePool(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedMariaDB(t)
	for _, params := range []string{
		"&autocommit=0",
		"&completion_type='CHAIN'",
		"&completion_type='RELEASE'",
		"&sql_mode='EMPTY_STRING_IS_NULL'",
		"&tx_read_only=1",
		"&tx_isolation='SERIALIZABLE'",
		"&tx_isolation='READ-UNCOMMITTED'",
		"&sql_mode='ANSI'",
		"&sql_mode='ORACLE'",
		"&sql_mode='PAD_CHAR_TO_FULL_LENGTH,NO_BACKSLASH_ESCAPES,NO_UNSIGNED_SUBTRACTION'",
		"&sql_mode=''&charset=latin1&time_zone='-07:00'",
		"&sql_safe_updates=1",
		"&sql_select_limit=0",
		"&clientFoundRows=true&parseTime=true",
	} {
		for _, s := range Strategies() {
			dsn := testserver.MariaDBSource(srv.Database(t)) + strings.ReplaceAll(params, "'", "%27")
			db := must.Get(sql.Open("mysql", dsn))(t)
			b, err := New(t.Context(), db, &Options{Strategy: s, Create: true})
			if err != nil {
				t.Errorf("%s: %s: %v", s, params, err)
			} else {
				useBriefly(t, b, string(s)+params)
			}
			db.Close()
		}
	}
}

// useBriefly makes each call of a strategy once.
func useBriefly(t *testing.T, b *Backend, what string) {
	t.Helper()
	defer b.Close()
	r := request(`jöb\'"%`, long)
	r.Meta = map[string]string{"note": `é\'"`}
	first := take(t, b, r)
	if held := refused(t, b, request(r.Name, long)); !b.Caps().Session && (held.Holders[0].Meta["note"] != r.Meta["note"] || held.Retry < long/2) {
		t.Errorf("%s: %+v", what, held)
	}
	r.Floor = first.Fence
	if b.Caps().Floor {
		r.Floor += 1 << 20
	}
	errs := b.Renew(t.Context(), []driver.Hold{r.Hold, request("none", long).Hold})
	if errs[0] != nil || !errors.Is(errs[1], driver.ErrLost) {
		t.Errorf("%s: %v", what, errs)
	}
	expect.OK(t, b.Release(t.Context(), r.Hold), what)
	if g := take(t, b, request(r.Name, long)); g.Fence <= r.Floor {
		t.Errorf("%s: fence %d is not above the floor %d", what, g.Fence, r.Floor)
	}
}

func TestPoolStaysTheCallers(t *testing.T) {
	t.Parallel()
	_, db := freshDatabase(t, Row)
	b := must.Get(New(t.Context(), db, &Options{Create: true}))(t)
	must.OK(t, b.Close())
	expect.OK(t, db.PingContext(t.Context()), "the pool after Close")
}

// The default name has the server's own, which a failover changes.
func TestName(t *testing.T) {
	t.Parallel()
	for _, s := range Strategies() {
		url, _ := freshDatabase(t, s)
		if got := connect(t, url+"&name=orders+db").Caps().Name; got != "orders db" {
			t.Errorf("%s: the name is %q", s, got)
		}
		if got := connect(t, url).Caps().Name; !strings.HasPrefix(got, "mysql://") || !strings.Contains(got, "?table=") {
			t.Errorf("%s: the default name is %q", s, got)
		}
	}
}

func TestVersions(t *testing.T) {
	for text, ok := range map[string]bool{
		"5.6.51": false, "5.7.0": true, "8.0.36-0ubuntu0.22.04.1": true, "9.1.0": true, "5.7.44-log": true,
		"5.5.5-10.11.6-MariaDB": true, "10.5.29-MariaDB": false, "10.6.0-MariaDB-log": true, "11.4.2-MariaDB": true,
		"5.5.5-10.4.34-MariaDB": false, "5.5.68-MariaDB": false, "8.0.33-Vitess": true, "odd": false,
	} {
		if err := readVersion(text).check(); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestSocketAndTLS(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedMariaDB(t)
	u := must.Get(url.Parse(srv.Database(t)))(t)
	says(t, u.String()+"?tls=true", "TLS")
	user := srv.User(t, u.String(), secret, "ALL ON "+databaseOf(t, u.String())+".*")
	connect(t, with(t, user, func(u *url.URL) {
		u.Host, u.RawQuery = "", "create=true&socket="+filepath.Join(srv.Dir(), "sock")
	}))
}

func TestFreeConnections(t *testing.T) {
	t.Parallel()
	srv := testserver.MariaDB(t, testserver.MariaDBOptions{Args: []string{"--max-connections=30"}})
	user := srv.User(t, srv.Database(t), "pw", "ALL ON *.*")
	b := openOne(t, user+"?create=true")
	for _, want := range []int{28, 27} { // not counting the administrator's and the backend's own
		admin := must.Get(srv.DB(t, srv.URL()).Conn(t.Context()))(t)
		defer admin.Close()
		wantFree(t, b, want)
	}
	u := must.Get(url.Parse(user))(t)
	srv.Exec(t, fmt.Sprintf("GRANT USAGE ON *.* TO %s@'%%' WITH MAX_USER_CONNECTIONS 7", u.User.Username()))
	limited := openOne(t, user)
	wantFree(t, limited, 5)
}

func wantFree(t *testing.T, b *Backend, want int) {
	t.Helper()
	until(t, fmt.Sprintf("%d connections are free", want), func() bool {
		free := must.Get(b.FreeConnections(t.Context()))(t)
		return free == want
	})
}

func openOne(t *testing.T, url string) *Backend {
	t.Helper()
	b := must.Get(Open(t.Context(), url))(t)
	t.Cleanup(func() { b.Close() })
	return b
}

func TestMaxConnections(t *testing.T) {
	t.Parallel()
	url := testserver.SharedMariaDB(t).Database(t) + "?create=true&max_connections="
	if n := openOne(t, url+"5").database.db.Stats().MaxOpenConnections; n != 5 {
		t.Errorf("the pool's limit is %d, want 5", n)
	}
	for _, wrong := range []string{"0", "-1", "many"} {
		if _, err := Open(t.Context(), url+wrong); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("max_connections=%s: %v, want ErrInvalid", wrong, err)
		}
	}
}

// The output of Schema can be run unchanged, and repeatedly. A strategy needs nothing else.
func TestSchema(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedMariaDB(t)
	for _, s := range Strategies() {
		t.Run(string(s), func(t *testing.T) {
			t.Parallel()
			for _, table := range []string{"", "Own_Table"} {
				u := srv.Database(t)
				db := srv.DB(t, u)
				for range 2 {
					for text := range strings.SplitSeq(Schema(Options{Strategy: s, Table: table}), ";\n") {
						if strings.TrimSpace(text) != "" {
							do(t, db, text)
						}
					}
				}
				b := connect(t, fmt.Sprintf("%s?strategy=%s&table=%s", u, s, table))
				take(t, b, request("x", long))
			}
		})
	}
}

func TestSchemaOfNonsense(t *testing.T) {
	for _, o := range []Options{{Strategy: "best"}, {Table: "a-b"}} {
		if text := Schema(o); text != "" {
			t.Errorf("%+v: %s", o, text)
		}
	}
}
