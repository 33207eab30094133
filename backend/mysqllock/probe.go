package mysqllock

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/distlock/distlock/driver"
)

// server is what a strategy may need to know of the server.
type server struct {
	text    string // VERSION()
	mariaDB bool
	major   int
	minor   int
	galera  bool // wsrep_on: GET_LOCK excludes on one node only
	charset string
}

// probe asks the server what it is and whether locks can be kept there.
func (s *site) probe(ctx context.Context) error {
	var text, host, database, readOnly, mode, charset string
	var port, autocommit int
	row := s.db.QueryRowContext(ctx, "SELECT VERSION(), @@hostname, @@port, COALESCE(DATABASE(), ''), @@autocommit, "+
		"CONCAT(@@read_only, @@innodb_read_only), @@sql_mode, @@character_set_connection")
	if err := row.Scan(&text, &host, &port, &database, &autocommit, &readOnly, &mode, &charset); err != nil {
		return openError(s, err)
	}
	s.server = readVersion(text)
	s.server.charset = charset
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
