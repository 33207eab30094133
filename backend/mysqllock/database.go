package mysqllock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/distlock/distlock/driver"
)

// database is the database that keeps the locks.
type database struct {
	db     *sql.DB // each connection is set by sessionSQL
	pool   *sql.DB // where the connections of db come from; db itself if Open made it
	lent   *lentPool
	opts   Options // complete
	spec   tableSpec
	server server
	name   string // for Caps.Name: the same from every process

	// fullTable is opts.Table with its schema, as the server compares them.
	fullTable string

	schema string // of tables that are named without one
}

// strategy is a way to keep locks. Its methods of Watcher and Inspector may return driver.ErrSkip.
type strategy interface {
	driver.Backend
	driver.Watcher
	driver.Inspector
}

// server describes the server.
type server struct {
	text    string // VERSION()
	mariaDB bool
	major   int
	minor   int
	galera  bool // wsrep_on: only one node knows the locks of a session
	packet  int  // max_allowed_packet
}

// probe reads the server's properties, and refuses a server that can't keep locks.
func (d *database) probe(ctx context.Context) error {
	var text, host, database, readOnly string
	var port, packet, lower int
	row := d.db.QueryRowContext(ctx, "SELECT VERSION(), @@hostname, @@port, COALESCE(DATABASE(), ''), "+
		"CONCAT(@@read_only, @@innodb_read_only), @@max_allowed_packet, @@lower_case_table_names")
	if err := row.Scan(&text, &host, &port, &database, &readOnly, &packet, &lower); err != nil {
		return openError(d.opts, err)
	}
	d.server = readVersion(text)
	d.server.packet, d.schema = packet, database
	if d.fullTable = d.opts.Table; !strings.Contains(d.fullTable, ".") {
		d.fullTable = database + "." + d.fullTable
	}
	if lower != 0 {
		d.fullTable = strings.ToLower(d.fullTable)
	}
	d.name = cmp.Or(d.opts.Name, fmt.Sprintf("mysql://%s:%d/%s?table=%s", host, port, database, d.opts.Table))
	if err := d.server.check(); err != nil {
		return err
	}
	switch {
	case strings.Trim(readOnly, "0FO") != "": // OFF in some versions
		return fmt.Errorf("%w: mysqllock: the server is read-only (read_only is on): want the primary, not a replica", driver.ErrInvalid)
	case database == "" && !strings.Contains(d.opts.Table, "."):
		return fmt.Errorf("%w: mysqllock: the pool's sessions have no database: name one in the DSN, or in the table as in app.%s", driver.ErrInvalid, d.opts.Table)
	}
	galera, err := d.show(ctx, "VARIABLES", "wsrep_on")
	d.server.galera = strings.EqualFold(galera, "ON")
	return openError(d.opts, err)
}

// quoted quotes a table's name with its schema: a connection that the caller's statements have used may have another
// database by now.
func (d *database) quoted(table string) string {
	if strings.Contains(table, ".") {
		return quoted(table)
	}
	return "`" + strings.ReplaceAll(d.schema, "`", "``") + "`." + quoted(table)
}

// readVersion parses VERSION(): "8.0.36", "10.11.19-MariaDB-0+deb12u1", or with a prefix for old
// clients "5.5.5-10.11.6-MariaDB".
func readVersion(text string) server {
	v := server{text: text, mariaDB: strings.Contains(strings.ToLower(text), "mariadb")}
	if v.mariaDB {
		text = strings.TrimPrefix(text, "5.5.5-")
	}
	parts := strings.SplitN(text, ".", 3)
	if len(parts) > 1 {
		v.major, _ = strconv.Atoi(parts[0])
		v.minor, _ = strconv.Atoi(parts[1])
	}
	return v
}

func (s server) check() error {
	major, minor, want := 5, 7, "MySQL 5.7"
	if s.mariaDB {
		major, minor, want = 10, 6, "MariaDB 10.6"
	}
	if s.major < major || s.major == major && s.minor < minor {
		return fmt.Errorf("%w: mysqllock: the server is %s: want %s or later", driver.ErrInvalid, s.text, want)
	}
	return nil
}

// The end of a lease is written and compared by the clock of the server that runs the statement. So
// all statements must run on one server.

// checkClocks refuses setups that visibly mix the clocks of several servers. The table exists.
func (d *database) checkClocks(ctx context.Context, table, key string) error {
	if err := d.checkWriters(ctx); err != nil {
		return err
	}
	return d.checkReads(ctx, table, key)
}

// checkWriters refuses a cluster with several writable nodes, for strategy Row.
func (d *database) checkWriters(ctx context.Context) error {
	if d.opts.OneWriter {
		return nil
	}
	what, err := d.writers(ctx)
	if err == nil && what != "" {
		err = fmt.Errorf("%w: mysqllock: the server belongs to %s, and a lease that one of them wrote would end by the clock of another: if all clients always write to the same one, open with onewriter=true", driver.ErrUnsupported, what)
	}
	return err
}

// refuseManyWriters refuses such a cluster, and each Galera node, for strategies that rely on the
// locks of sessions and rows. Nodes detect conflicts only at the commit, and only of rows that were
// written.
func (d *database) refuseManyWriters(ctx context.Context) error {
	what, err := d.writers(ctx)
	if d.server.galera {
		what = "a Galera cluster"
	}
	if err == nil && what != "" {
		err = fmt.Errorf("%w: mysqllock: the server belongs to %s, whose nodes don't know each other's sessions and row locks: want strategy row", driver.ErrUnsupported, what)
	}
	return err
}

// singlePrimary is a variable of servers with group replication.
const singlePrimary = "group_replication_single_primary_mode"

// writers describes a cluster with several writable nodes; it returns "" for any other.
func (d *database) writers(ctx context.Context) (string, error) {
	size, err := d.show(ctx, "STATUS", "wsrep_cluster_size")
	if err != nil {
		return "", err
	}
	single, err := d.show(ctx, "VARIABLES", singlePrimary)
	return manyWriters(d.server.galera, size, single), err
}

// manyWriters describes a cluster with several writable nodes; it returns "" for any other.
func manyWriters(galera bool, size, single string) string {
	switch {
	case galera && size != "" && size != "0" && size != "1":
		return "a Galera cluster of " + size + " nodes"
	case strings.EqualFold(single, "OFF"):
		return "a replication group with several primaries"
	}
	return ""
}

// show returns a global variable or status; "" if the server has none of that name.
func (d *database) show(ctx context.Context, kind, name string) (value string, err error) {
	err = d.db.QueryRowContext(ctx, "SHOW GLOBAL "+kind+" LIKE '"+name+"'").Scan(&name, &value)
	if noRows(err) {
		return "", nil
	}
	return value, err
}

// serverSQL identifies the server.
const serverSQL = "SELECT CONCAT(@@hostname, ':', @@port, ', server_id ', @@server_id) FROM (SELECT 1 AS one) o LEFT JOIN "

// readTries is how often a SELECT is sent: a proxy may send some of them to the primary.
const readTries = 4

// checkReads refuses a proxy that sends a SELECT to another server than statements that write. A
// replica lags, and has a clock of its own.
func (d *database) checkReads(ctx context.Context, table, key string) error {
	text := serverSQL + quoted(table) + " ON `" + key + "` = ''"
	writer, err := d.writer(ctx, text+" FOR UPDATE")
	if err != nil {
		return err
	}
	for range readTries {
		var reader string
		if err := d.db.QueryRowContext(ctx, text).Scan(&reader); err != nil {
			return err
		}
		if reader == writer {
			continue
		}
		if now, err := d.writer(ctx, text+" FOR UPDATE"); err != nil {
			return err
		} else if now != writer {
			return fmt.Errorf("mysqllock: the server that writes has changed from %s to %s", writer, now)
		}
		return fmt.Errorf("%w: mysqllock: a SELECT is answered by %s, and what writes by %s: a proxy in between shares them out, and the two have two clocks: want the primary itself, or a rule by which all statements of this user go there",
			driver.ErrUnsupported, reader, writer)
	}
	return nil
}

// writer returns the server that runs transactions.
func (d *database) writer(ctx context.Context, text string) (name string, err error) {
	tx, err := d.db.BeginTx(ctx, nil)
	if err != nil {
		return "", err
	}
	defer tx.Rollback()
	err = tx.QueryRowContext(ctx, text).Scan(&name)
	return name, err
}

// fits refuses a statement of a size, in bytes, to which the server would respond by closing the connection.
func (d *database) fits(size int) error {
	if d.server.packet > 0 && size > d.server.packet {
		return fmt.Errorf("%w: %s: %d bytes, at most %d are possible", driver.ErrInvalid, packetTooLarge, size, d.server.packet)
	}
	return nil
}

// change runs a statement that changes rows and commits by itself. It returns the number of changed
// rows, and the insert id that the statement set for a row, changed or not. size is the statement's, see fits.
func (d *database) change(ctx context.Context, size int, run func() (sql.Result, error)) (n, id int64, err error) {
	if err := d.fits(size); err != nil {
		return 0, 0, err
	}
	err = retryUndone(ctx, func() error {
		n, id, err = changed(run())
		return err
	})
	if why := finalCallCause(err); why != "" {
		err = fmt.Errorf("%w: %s: %w", driver.ErrInvalid, why, err)
	}
	return n, id, unchanged(err)
}

func changed(res sql.Result, err error) (n, id int64, _ error) {
	if err != nil {
		return 0, 0, err
	}
	n, err = res.RowsAffected()
	if err == nil {
		id, err = res.LastInsertId()
	}
	return n, id, err
}

// clockSQL is the server's clock in µs since 1970, as of the statement's start.
const clockSQL = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

// writable is a table with one row, and with none on a read-only server: a replica, to which a proxy may send what only
// reads, does not know the latest changes, and its clock is another one.
const writable = "(SELECT 1 AS one FROM DUAL WHERE CONCAT(@@read_only) IN ('0', 'OFF'))"

// answered returns the error of a query that selects the clock from writable.
func answered(rows *sql.Rows, now int64) error {
	err := rows.Err()
	if err == nil && now == 0 {
		err = errors.New("a read-only server has answered, which may not know the latest changes: the connections must be to the primary")
	}
	return err
}

// skipLocked makes a SELECT … FOR UPDATE leave out rows that another transaction has locked. It is
// empty if the server can't do that.
func (s server) skipLocked() string {
	if !s.mariaDB && s.major < 8 {
		return ""
	}
	return "SKIP LOCKED"
}
