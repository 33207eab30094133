package mysqllock

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/connlock"
)

// server is what a strategy may need to know of the server.
type server struct {
	text    string // VERSION()
	mariaDB bool
	major   int
	minor   int
	galera  bool // wsrep_on: what a session locks is known to one node only
	charset string
	packet  int64 // max_allowed_packet
}

// probe asks the server what it is and whether locks can be kept there.
func (s *site) probe(ctx context.Context) error {
	var text, host, database, readOnly, mode, charset string
	var port, autocommit int
	var packet int64
	row := s.db.QueryRowContext(ctx, "SELECT VERSION(), @@hostname, @@port, COALESCE(DATABASE(), ''), @@autocommit, "+
		"CONCAT(@@read_only, @@innodb_read_only), @@sql_mode, @@character_set_connection, @@max_allowed_packet")
	if err := row.Scan(&text, &host, &port, &database, &autocommit, &readOnly, &mode, &charset, &packet); err != nil {
		return openError(s, err)
	}
	s.server = readVersion(text)
	s.server.charset, s.server.packet = charset, packet
	s.name = fmt.Sprintf("mysql://%s:%d/%s?table=%s", host, port, database, s.opts.Table)
	if err := s.server.check(); err != nil {
		return err
	}
	switch {
	case strings.Trim(readOnly, "0FO") != "": // OFF in some versions
		return fmt.Errorf("%w: mysqllock: the server is read-only (read_only is on): want the primary, not a replica", driver.ErrInvalid)
	case autocommit == 0:
		return fmt.Errorf("%w: mysqllock: the pool's sessions have autocommit=0, so that nothing would ever be committed: remove it from the DSN", driver.ErrInvalid)
	case strings.Contains(mode, "EMPTY_STRING_IS_NULL"):
		return fmt.Errorf("%w: mysqllock: the pool's sessions have sql_mode EMPTY_STRING_IS_NULL: remove it", driver.ErrInvalid)
	case database == "" && !strings.Contains(s.opts.Table, "."):
		return fmt.Errorf("%w: mysqllock: the pool's sessions have no database: name one in the DSN, or in the table as in app.%s", driver.ErrInvalid, s.opts.Table)
	}
	return s.probeGalera(ctx)
}

func (s *site) probeGalera(ctx context.Context) error {
	var name, value string
	err := s.db.QueryRowContext(ctx, "SHOW GLOBAL VARIABLES LIKE 'wsrep_on'").Scan(&name, &value)
	if absent(err) {
		return nil
	}
	s.server.galera = strings.EqualFold(value, "ON")
	return openError(s, err)
}

// refuseWriters refuses a cluster with several nodes to write to, for strategies that trust
// in what one session keeps others from: nodes find out only at the commit, and only what
// was written.
func (s *site) refuseWriters(ctx context.Context) error {
	if !s.server.galera {
		single, err := s.show(ctx, "VARIABLES", singlePrimary)
		if err == nil && manyWriters(false, "", single) != "" {
			err = fmt.Errorf("%w: mysqllock: the server belongs to a replication group with several primaries, which don't know each other's sessions and row locks: want a group with a single primary, or strategy row or version", driver.ErrUnsupported)
		}
		return err
	}
	return fmt.Errorf("%w: mysqllock: the server is a node of a Galera cluster, whose nodes don't know each other's sessions and row locks: want strategy row or version", driver.ErrUnsupported)
}

// probeSessions refuses a proxy that shares out sessions, for strategies whose locks belong
// to one.
func (s *site) probeSessions(ctx context.Context) error {
	if err := connlock.CheckPool(s.db); err != nil {
		return err
	}
	holder, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer holder.Close()
	rival, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer rival.Close()
	return excludes(ctx, holder, rival)
}

// excludes tries a lock of holder's session, which must last from one statement to the
// next, and keep rival out.
func excludes(ctx context.Context, holder, rival *sql.Conn) error {
	name := "distlock-" + driver.NewOwner()
	var taken, passed, mine, freed sql.NullInt64
	for _, q := range []struct {
		conn *sql.Conn
		text string
		into *sql.NullInt64
	}{
		{holder, "SELECT GET_LOCK(?, 0)", &taken},
		{rival, "SELECT GET_LOCK(?, 0)", &passed},
		{holder, "SELECT IS_USED_LOCK(?) = CONNECTION_ID()", &mine},
		{holder, "SELECT RELEASE_LOCK(?)", &freed},
	} {
		if err := q.conn.QueryRowContext(ctx, q.text, name).Scan(q.into); err != nil {
			return err
		}
	}
	if taken.Int64 != 1 || passed.Int64 != 0 || mine.Int64 != 1 || freed.Int64 != 1 {
		return fmt.Errorf("%w: mysqllock: a lock of one session does not keep others out: is a proxy in between that shares out sessions? want the server itself, or strategy row", driver.ErrUnsupported)
	}
	return nil
}

// readVersion reads what VERSION() says: "8.0.36", "10.11.19-MariaDB-0+deb12u1", or with
// a prefix for old clients "5.5.5-10.11.6-MariaDB".
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

func (v server) check() error {
	major, minor, want := 5, 7, "MySQL 5.7"
	if v.mariaDB {
		major, minor, want = 10, 6, "MariaDB 10.6"
	}
	if v.major < major || v.major == major && v.minor < minor {
		return fmt.Errorf("%w: mysqllock: the server is %s: want %s or later", driver.ErrInvalid, v.text, want)
	}
	return nil
}
