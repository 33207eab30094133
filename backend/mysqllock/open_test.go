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
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// says checks that Open returns ErrInvalid with these words and no password.
func says(t *testing.T, rawURL string, words ...string) {
	t.Helper()
	b, err := Open(t.Context(), rawURL)
	if err == nil {
		b.Close()
		t.Errorf("%s: opened; want an error with %q", rawURL, words)
		return
	}
	if !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("%s: %v; want ErrInvalid", rawURL, err)
	}
	worded(t, err, words...)
}

func worded(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q lacks %q", err, w)
		}
	}
	if strings.Contains(err.Error(), secret) {
		t.Errorf("%q shows the password", err)
	}
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
		"mysql://u:" + secret + "@h/app?strategy=best":   "one of row, unique, version, forupdate, session",
		"mysql://h/app?parsetime=true":                   `unknown parameter "parsetime"`,
		"mysql://h/app?charset=latin1":                   "known: ",
		"mysql://h/app?multistatements=true":             "allowNativePasswords",
		"mysql://h/app?table=a-b":                        "letters, digits and underscores",
		"mysql://h/app?table=a.b.c":                      "letters, digits and underscores",
		"mysql://h/app?table=" + strings.Repeat("x", 49): "at most 48",
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
	db, err := sql.Open("mysql", "tcp(127.0.0.1:1)/app")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, o := range []Options{{Strategy: "best"}, {Table: "a b"}} {
		_, err := New(t.Context(), db, &o)
		wantIs(t, err, driver.ErrInvalid)
	}
	_, err = New(t.Context(), nil, nil)
	wantIs(t, err, driver.ErrInvalid)
}

func TestUnreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // accepts connections and sends nothing
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = Open(ctx, "mysql://u:"+secret+"@"+l.Addr().String()+"/app")
	if !errors.Is(err, context.DeadlineExceeded) || driver.Final(err) {
		t.Errorf("a silent server: %v", err)
	}
	worded(t, err, "mysqllock: open")
	_, err = Open(t.Context(), "mysql://u:"+secret+"@127.0.0.1:1/app")
	if err == nil || driver.Final(err) {
		t.Errorf("no server: %v; want an error that is not final", err)
	}
	worded(t, err, "refused")
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
	says(t, user+"?strategy=unique", "table distlock_unique is missing", "distlock schema mysql --strategy unique", "create=true")
	says(t, user+"?strategy=unique&create=true", "may not create tables", "GRANT CREATE")

	connect(t, admin+"?strategy=version&create=true")
	reader := srv.User(t, admin, secret, "SELECT ON "+name+".*")
	says(t, reader+"?strategy=version", "GRANT SELECT, INSERT, UPDATE ON distlock_versions")
	connect(t, user+"?strategy=version")

	srv.Expire(t, user)
	says(t, user, "expired")
}

func databaseOf(t *testing.T, rawURL string) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Trim(u.Path, "/")
}

func with(t *testing.T, rawURL string, change func(*url.URL)) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	change(u)
	return u.String()
}

func TestReadOnlyServerRefused(t *testing.T) {
	t.Parallel()
	srv := testserver.MariaDB(t, testserver.MariaDBOptions{Args: []string{"--read-only=ON"}})
	says(t, srv.Database(t)+"?strategy=unique&create=true", "read-only", "primary")
}

// A server that became a replica grants no lock, and the error says why.
func TestServerBecomesReadOnly(t *testing.T) {
	t.Parallel()
	srv := testserver.MariaDB(t, testserver.MariaDBOptions{})
	admin := srv.Database(t)
	name := databaseOf(t, admin)
	for _, s := range []Strategy{UniqueIndex, Version} {
		connect(t, admin+"?create=true&strategy="+string(s))
		db := srv.DB(t, srv.User(t, admin, secret, "SELECT, INSERT, UPDATE, DELETE ON "+name+".*"))
		b, err := New(t.Context(), db, &Options{Strategy: s})
		if err != nil {
			t.Fatal(err)
		}
		r := request("x", long)
		take(t, b, r)
		srv.Exec(t, "SET GLOBAL read_only = 1")
		for _, err := range []error{b.Renew(t.Context(), []driver.Hold{r.Hold})[0], b.Release(t.Context(), r.Hold)} {
			if err == nil || driver.Final(err) || errors.Is(err, driver.ErrLost) {
				t.Errorf("%s on a replica: %v; want an unknown outcome", s, err)
			}
			worded(t, err, "read-only")
		}
		srv.Exec(t, "SET GLOBAL read_only = 0")
		if err := b.Release(t.Context(), r.Hold); err != nil {
			t.Errorf("%s on the primary again: %v", s, err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestTablesRefused(t *testing.T) {
	t.Parallel()
	const rest = "owner VARCHAR(64) NOT NULL, expires BIGINT"
	for ddl, words := range map[string]string{
		"name VARBINARY(99) PRIMARY KEY, expires BIGINT)":                                     "column owner is missing",
		"name VARBINARY(99) PRIMARY KEY, owner VARCHAR(64), expires DATETIME)":                "column expires is datetime: want bigint",
		"name INT PRIMARY KEY, " + rest + ")":                                                 "column name is int",
		"name VARBINARY(99) PRIMARY KEY, owner VARCHAR(20), expires BIGINT)":                  "column owner has room for 20 characters: want 36",
		"name VARCHAR(99) PRIMARY KEY, " + rest + ")":                                         "collation latin1_swedish_ci",
		"name VARCHAR(99) COLLATE utf8mb4_general_ci PRIMARY KEY, " + rest + ")":              "names such as job and JOB can be equal",
		"name VARCHAR(99) CHARACTER SET latin1 COLLATE latin1_bin PRIMARY KEY, " + rest + ")": "lacks most characters",
		"name BINARY(99) PRIMARY KEY, " + rest + ")":                                          "column name is binary(99)",
		"name VARBINARY(99) PRIMARY KEY, owner BINARY(64) NOT NULL, expires BIGINT)":          "column owner is binary(64)",
		"name VARBINARY(99) PRIMARY KEY, owner CHAR(40) NOT NULL, expires BIGINT)":            "column owner is char(40)",
		"name VARBINARY(99) NOT NULL, " + rest + ")":                                          "neither PRIMARY KEY nor UNIQUE",
		"name VARBINARY(99) NOT NULL, " + rest + ", UNIQUE (name(10)))":                       "in full",
		"name VARBINARY(99) NOT NULL, " + rest + ", UNIQUE (name, owner))":                    "by itself",
		"name VARBINARY(99) PRIMARY KEY, tenant INT NOT NULL, " + rest + ")":                  "column tenant is of another program",
		"name VARBINARY(99) PRIMARY KEY, " + rest + ", meta INT)":                             "column meta is int",
		"name VARBINARY(99) PRIMARY KEY, " + rest + ") ENGINE=MyISAM":                         "engine is MyISAM: want InnoDB",
	} {
		u, db := freshDatabase(t, UniqueIndex)
		do(t, db, "ALTER DATABASE CHARACTER SET latin1", "CREATE TABLE locks ("+ddl)
		says(t, u+"&table=locks", words, "table locks", "distlock schema mysql --strategy unique")
	}
}

func TestViewRefused(t *testing.T) {
	t.Parallel()
	u, db := freshDatabase(t, UniqueIndex)
	do(t, db, "CREATE TABLE real_locks (name VARBINARY(99) PRIMARY KEY, owner VARCHAR(64) NOT NULL, expires BIGINT)", "CREATE VIEW locks AS SELECT * FROM real_locks")
	says(t, u+"&table=locks", "engine is VIEW")
}

// A table that another program created works. It has an extra column, and only the required columns of
// ours.
func TestTableOfOthers(t *testing.T) {
	t.Parallel()
	for s, ddl := range map[Strategy]string{
		UniqueIndex: "id INT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(40) COLLATE utf8mb4_bin NOT NULL UNIQUE, owner VARCHAR(64) NOT NULL, expires BIGINT NOT NULL, at TIMESTAMP NOT NULL DEFAULT NOW()",
		Version:     "name VARCHAR(40) COLLATE utf8mb4_bin PRIMARY KEY, version BIGINT NOT NULL, owner VARCHAR(64), expires BIGINT",
	} {
		u, db := freshDatabase(t, s)
		do(t, db, "CREATE TABLE locks ("+ddl+")")
		if s == UniqueIndex {
			do(t, db, uniqueTables(Options{Table: "locks"})[1].ddl())
		}
		b := connect(t, u+"&table=locks")
		r := request("jöb", long)
		first := take(t, b, r)
		if held := refused(t, b, request("jöb", long)); held.Retry < long/2 || len(held.Holders) != 1 || held.Holders[0].Owner != r.Owner {
			t.Errorf("%s: %+v", s, held)
		}
		take(t, b, request("JÖB", long))
		if err := errors.Join(b.Renew(t.Context(), []driver.Hold{r.Hold})...); err != nil {
			t.Errorf("%s: %v", s, err)
		}
		if err := b.Release(t.Context(), r.Hold); err != nil {
			t.Errorf("%s: %v", s, err)
		}
		if again := take(t, b, request("jöb", long)); again.Fence <= first.Last() {
			t.Errorf("%s: fence %d after %d", s, again.Fence, first.Last())
		}
		_, err := b.Acquire(t.Context(), request(strings.Repeat("é", 41), long))
		wantIs(t, err, driver.ErrInvalid)
		worded(t, err, "41 characters", "room for 40")
		_, err = b.Acquire(t.Context(), request("job ", long))
		wantIs(t, err, driver.ErrInvalid)
		worded(t, err, "ends with a space")
	}
}

func TestNameLongerThanTheColumn(t *testing.T) {
	t.Parallel()
	for _, s := range []Strategy{UniqueIndex, Version} {
		u, _ := freshDatabase(t, s)
		b := connect(t, u)
		take(t, b, request(strings.Repeat("x", nameLength), long))
		_, err := b.Acquire(t.Context(), request(strings.Repeat("x", nameLength+1), long))
		wantIs(t, err, driver.ErrInvalid)
		worded(t, err, "2049 bytes", "room for 2048")
	}
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
			db, err := sql.Open("mysql", dsn)
			if err != nil {
				t.Fatal(err)
			}
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
	if held := refused(t, b, request(r.Name, long)); held.Holders[0].Meta["note"] != r.Meta["note"] || held.Retry < long/2 && !b.Caps().Session {
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
	if err := b.Release(t.Context(), r.Hold); err != nil {
		t.Errorf("%s: %v", what, err)
	}
	if g := take(t, b, request(r.Name, long)); g.Fence <= r.Floor {
		t.Errorf("%s: fence %d is not above the floor %d", what, g.Fence, r.Floor)
	}
}

func TestPoolStaysTheCallers(t *testing.T) {
	t.Parallel()
	_, db := freshDatabase(t, Version)
	b, err := New(t.Context(), db, &Options{Strategy: Version, Create: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := db.PingContext(t.Context()); err != nil {
		t.Errorf("the pool after Close: %v", err)
	}
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
	u, err := url.Parse(srv.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	says(t, u.String()+"?tls=true&strategy=version", "TLS")
	user := srv.User(t, u.String(), secret, "ALL ON "+databaseOf(t, u.String())+".*")
	connect(t, with(t, user, func(u *url.URL) {
		u.Host, u.RawQuery = "", "create=true&strategy=version&socket="+filepath.Join(srv.Dir(), "sock")
	}))
}

func TestFreeConnections(t *testing.T) {
	t.Parallel()
	srv := testserver.MariaDB(t, testserver.MariaDBOptions{Args: []string{"--max-connections=30"}})
	user := srv.User(t, srv.Database(t), "pw", "ALL ON *.*")
	b := openOne(t, user+"?create=true")
	for _, want := range []int{28, 27} { // not counting the administrator's and the backend's own
		admin, err := srv.DB(t, srv.URL()).Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer admin.Close()
		wantFree(t, b, want)
	}
	u, err := url.Parse(user)
	if err != nil {
		t.Fatal(err)
	}
	srv.Exec(t, fmt.Sprintf("GRANT USAGE ON *.* TO %s@'%%' WITH MAX_USER_CONNECTIONS 7", u.User.Username()))
	limited := openOne(t, user)
	wantFree(t, limited, 5)
}

func wantFree(t *testing.T, b *Backend, want int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d connections are free", want), func() bool {
		free, err := b.FreeConnections(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return free == want
	})
}

func openOne(t *testing.T, url string) *Backend {
	t.Helper()
	b, err := Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
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
