package mysqllock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// splitter makes connections like a proxy that sends each SELECT outside of a transaction to a replica.
type splitter struct {
	writer, reader sqldriver.Connector
	skew           *time.Duration // of the reader's clock
}

func (s *splitter) Driver() sqldriver.Driver { return s.writer.Driver() }

func (s *splitter) Connect(ctx context.Context) (sqldriver.Conn, error) {
	w, err := s.writer.Connect(ctx)
	if err != nil {
		return nil, err
	}
	r, err := s.reader.Connect(ctx)
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return &splitConn{mysqlConn: w.(mysqlConn), reader: r.(mysqlConn), skew: s.skew}, nil
}

// mysqlConn has the methods of the MySQL driver's connections that are used here.
type mysqlConn interface {
	sqldriver.Conn
	sqldriver.ConnPrepareContext
	sqldriver.QueryerContext
	sqldriver.ExecerContext
	sqldriver.ConnBeginTx
	sqldriver.NamedValueChecker
	sqldriver.SessionResetter
	sqldriver.Validator
}

type splitConn struct {
	mysqlConn
	reader mysqlConn
	skew   *time.Duration
	inside bool // in a transaction
}

func (c *splitConn) Close() error { return errors.Join(c.mysqlConn.Close(), c.reader.Close()) }

func (c *splitConn) BeginTx(ctx context.Context, o sqldriver.TxOptions) (sqldriver.Tx, error) {
	tx, err := c.mysqlConn.BeginTx(ctx, o)
	c.inside = err == nil
	return &splitTx{tx, c}, err
}

type splitTx struct {
	sqldriver.Tx
	c *splitConn
}

func (t *splitTx) Commit() error { t.c.inside = false; return t.Tx.Commit() }

func (t *splitTx) Rollback() error { t.c.inside = false; return t.Tx.Rollback() }

func (c *splitConn) reads(text string) bool {
	return !c.inside && strings.HasPrefix(text, "SELECT") && !strings.Contains(text, "FOR UPDATE")
}

// turn sets the reader's clock.
func (c *splitConn) turn(ctx context.Context) error {
	_, err := c.reader.ExecContext(ctx, fmt.Sprintf("SET timestamp = UNIX_TIMESTAMP(SYSDATE(6)) + %f", c.skew.Seconds()), nil)
	return err
}

func (c *splitConn) QueryContext(ctx context.Context, text string, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	if !c.reads(text) {
		return c.mysqlConn.QueryContext(ctx, text, args)
	}
	if err := c.turn(ctx); err != nil {
		return nil, err
	}
	return c.reader.QueryContext(ctx, text, args)
}

func (c *splitConn) PrepareContext(ctx context.Context, text string) (sqldriver.Stmt, error) {
	if !c.reads(text) {
		return c.mysqlConn.PrepareContext(ctx, text)
	}
	stmt, err := c.reader.PrepareContext(ctx, text)
	return &readStmt{stmt, c}, err
}

type readStmt struct {
	sqldriver.Stmt
	c *splitConn
}

func (s *readStmt) QueryContext(ctx context.Context, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	if err := s.c.turn(ctx); err != nil {
		return nil, err
	}
	return s.Stmt.(sqldriver.StmtQueryContext).QueryContext(ctx, args)
}

// splitPool returns a pool behind such a proxy.
func splitPool(t *testing.T, writer, reader string, skew *time.Duration) *sql.DB {
	t.Helper()
	var both [2]sqldriver.Connector
	for i, rawURL := range []string{writer, reader} {
		c, err := mysql.ParseDSN(testserver.MariaDBSource(rawURL))
		if err == nil {
			both[i], err = mysql.NewConnector(c)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	db := sql.OpenDB(&splitter{both[0], both[1], skew})
	t.Cleanup(func() { db.Close() })
	return db
}

// Rows are read by a clock 8 s ahead or behind, and written by another. No held lock is granted, and no
// renewed hold is lost.
func TestReadsByAnotherClock(t *testing.T) {
	t.Parallel()
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Read} {
		for _, skew := range []time.Duration{8 * time.Second, -8 * time.Second} {
			t.Run(fmt.Sprint(mode, skew), func(t *testing.T) {
				t.Parallel()
				readByAnotherClock(t, mode, skew)
			})
		}
	}
}

func readByAnotherClock(t *testing.T, mode driver.Mode, skew time.Duration) {
	url := testserver.SharedMariaDB(t).Database(t)
	reader := new(time.Duration)
	b := must.Get(New(t.Context(), splitPool(t, url, url, reader), &Options{Create: true}))(t)
	t.Cleanup(func() { b.Close() })
	direct := connect(t, url)
	r, rival := asks("x", mode), asks("x", driver.Write)
	if mode == driver.Exclusive {
		rival.Mode = mode
	}
	r.TTL = abs(skew) - time.Second
	anchor := time.Now()
	take(t, direct, r)
	*reader = skew
	g, err := b.Acquire(t.Context(), rival)
	if err == nil && time.Since(anchor) < r.TTL {
		t.Fatalf("a second holder: %+v", g)
	}
	anchor = time.Now()
	if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; err != nil {
		return // the stale answer is ignored
	}
	_, err = direct.Acquire(t.Context(), rival)
	if err == nil && time.Since(anchor) < r.TTL {
		t.Fatal("a renewed hold is lost")
	}
	left := must.Get(direct.Inspect(t.Context(), r.Name))(t)
	if since := time.Since(anchor); since < r.TTL && (len(left.Holders) == 0 || left.Holders[0].Left < r.TTL-since) {
		t.Errorf("%v after a renewal for %v: %+v", since, r.TTL, left)
	}
}

func abs(d time.Duration) time.Duration { return max(d, -d) }

// A proxy that sends reads to another server is refused for each strategy. A connection strategy would
// lock on the server that SELECT reaches, and other clients could lock on another.
func TestSplitReadsRefused(t *testing.T) {
	t.Parallel()
	one, other := testserver.SharedMariaDB(t), testserver.MariaDB(t, testserver.MariaDBOptions{})
	for _, s := range Strategies() {
		writer, reader := one.Database(t), other.Database(t)
		connect(t, writer+"?create=true&strategy="+string(s))
		connect(t, reader+"?create=true&strategy="+string(s))
		b, err := New(t.Context(), splitPool(t, writer, reader, new(time.Duration)), &Options{Strategy: s})
		if err == nil {
			b.Close()
		}
		wantIs(t, err, driver.ErrUnsupported)
		locktest.Says(t, err, "two clocks")
	}
}

// The table lists server settings of clusters and single servers.
func TestManyWriters(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		galera       bool
		size, single string
		want         string
	}{
		{false, "", "", ""},
		{true, "1", "", ""},
		{true, "3", "", "3 nodes"},
		{false, "0", "", ""}, // Galera is built in, but off
		{false, "", "ON", ""},
		{false, "", "OFF", "several primaries"},
	} {
		if got := manyWriters(c.galera, c.size, c.single); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// groupConn is a connection to a replication group with several primaries.
type groupConn struct{ mysqlConn }

func (c groupConn) QueryContext(ctx context.Context, text string, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	if strings.Contains(text, singlePrimary) {
		text = "SELECT 'name', 'OFF'"
	}
	return c.mysqlConn.QueryContext(ctx, text, args)
}

type group struct{ sqldriver.Connector }

func (g group) Connect(ctx context.Context) (sqldriver.Conn, error) {
	c, err := g.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return groupConn{c.(mysqlConn)}, nil
}

// A group with several primaries is refused for each strategy. A promise to write to one of them helps
// only strategies that need nothing but its clock.
func TestSeveralPrimariesRefused(t *testing.T) {
	t.Parallel()
	for _, s := range Strategies() {
		c := must.Get(mysql.ParseDSN(testserver.MariaDBSource(testserver.SharedMariaDB(t).Database(t))))(t)
		connector := must.Get(mysql.NewConnector(c))(t)
		db := sql.OpenDB(group{connector})
		t.Cleanup(func() { db.Close() })
		for _, one := range []bool{false, true} {
			b, err := New(t.Context(), db, &Options{Strategy: s, Create: true, OneWriter: one})
			if err == nil {
				b.Close()
			}
			if one && s == Row {
				wantIs(t, err, nil)
				continue
			}
			wantIs(t, err, driver.ErrUnsupported)
			locktest.Says(t, err, "several primaries")
		}
	}
}

// galeraProvider comes with MariaDB's package.
const galeraProvider = "/usr/lib/galera/libgalera_smm.so"

// galeraNode starts a node that listens to other nodes on a port.
func galeraNode(t *testing.T, port, cluster string, more ...string) *testserver.MariaDBServer {
	t.Helper()
	if _, err := os.Stat(galeraProvider); err != nil {
		testserver.SharedMariaDB(t) // installs the package
	}
	args := []string{
		"--wsrep-on=ON", "--wsrep-provider=" + galeraProvider, "--wsrep-cluster-address=gcomm://" + cluster,
		"--wsrep-sst-method=skip", "--wsrep-node-address=127.0.0.1", "--binlog-format=ROW", "--innodb-autoinc-lock-mode=2",
		"--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:" + port + ";ist.recv_addr=127.0.0.1:0",
	}
	srv := testserver.MariaDB(t, testserver.MariaDBOptions{Args: append(args, more...)})
	if cluster == "" { // it is a cluster alone, and answers before it takes what needs a table
		until(t, "the node may be used", func() bool {
			return srv.Ask(t, "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'wsrep_ready'") == "ON"
		})
	}
	return srv
}

// A cluster of one node counts as a cluster.
func TestLongGalera(t *testing.T) {
	t.Parallel()
	srv := galeraNode(t, "0", "", "--wsrep-new-cluster")
	url := srv.Database(t) + "?create=true&strategy="
	for _, s := range []Strategy{ForUpdate, Session} {
		_, err := Open(t.Context(), url+string(s))
		wantIs(t, err, driver.ErrUnsupported)
		locktest.Says(t, err, "Galera", "strategy row")
	}
	b := connect(t, url+"row")
	take(t, b, request("x", long))
	refused(t, b, request("x", long))
}

// A cluster whose nodes all accept writes has several clocks. It is refused, unless all clients write
// to one node.
func TestLongGaleraOfTwo(t *testing.T) {
	t.Parallel()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	first := galeraNode(t, port, "", "--wsrep-new-cluster")
	url := first.Database(t) + "?create=true"
	connect(t, url)
	galeraNode(t, "0", "127.0.0.1:"+port)
	until(t, "the second node is there", func() bool {
		return first.Ask(t, "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'wsrep_cluster_size'") == "2"
	})
	_, err := Open(t.Context(), url)
	wantIs(t, err, driver.ErrUnsupported)
	locktest.Says(t, err, "2 nodes", "onewriter=true")
	take(t, connect(t, url+"&onewriter=true"), request("x", long))
}

// A statement that exceeds the packet limit is refused for good. A retry would not help.
func TestPacketTooLarge(t *testing.T) {
	t.Parallel()
	srv := testserver.MariaDB(t, testserver.MariaDBOptions{Args: []string{"--max-allowed-packet=1M"}})
	b := connect(t, srv.Database(t)+"?create=true")
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Read} {
		r := asks(mode.String(), mode)
		take(t, b, r)
		r.Meta = map[string]string{"note": strings.Repeat("x", 3<<19)}
		_, err := b.Acquire(t.Context(), r)
		wantIs(t, err, driver.ErrInvalid)
		release(t, b, r)
		r.Meta = map[string]string{"note": strings.Repeat("x", 1<<18)}
		take(t, b, r)
	}
}

func TestPacketTooLargeForAConnection(t *testing.T) {
	t.Parallel()
	srv := testserver.MariaDB(t, testserver.MariaDBOptions{Args: []string{"--max-allowed-packet=1M"}})
	for _, s := range []Strategy{Session, ForUpdate} {
		b := connect(t, srv.Database(t)+"?create=true&strategy="+string(s))
		wantIs(t, expect.Err(b.Acquire(t.Context(), request(strings.Repeat("x", 3<<19), long))), driver.ErrInvalid)
		take(t, b, request("small", long))
	}
}

// The server's errors about size are final, too.
func TestErrorsOfSize(t *testing.T) {
	t.Parallel()
	for _, n := range []uint16{errPacket, errFunctionPacket, errTooLong, errOutOfRange, errOverflow, errBadText} {
		if finalCallCause(fmt.Errorf("call: %w", &mysql.MySQLError{Number: n})) == "" {
			t.Errorf("error %d is not final", n)
		}
	}
	if finalCallCause(mysql.ErrPktTooLarge) == "" {
		t.Error("the pool's own limit is not final")
	}
	for _, err := range []error{nil, mysql.ErrInvalidConn, &mysql.MySQLError{Number: errDeadlock}} {
		if why := finalCallCause(err); why != "" {
			t.Errorf("%v: %s", err, why)
		}
	}
}

// A TTL that no clock can represent is refused at once.
func TestTTLTooLarge(t *testing.T) {
	t.Parallel()
	url, _ := freshDatabase(t, Row)
	b := connect(t, url)
	r := request("x", long)
	take(t, b, r)
	for _, ttl := range []time.Duration{20 * driver.MaxTTL, math.MaxInt64, 0, -1} {
		huge := r
		huge.TTL = ttl
		_, err := b.Acquire(t.Context(), huge)
		wantIs(t, err, driver.ErrInvalid)
		wantIs(t, b.Renew(t.Context(), []driver.Hold{huge.Hold})[0], driver.ErrInvalid)
	}
}
