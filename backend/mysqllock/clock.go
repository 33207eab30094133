package mysqllock

import (
	"context"
	"fmt"
	"strings"

	"github.com/distlock/distlock/driver"
)

// The end of a lease is written and compared by the clock of the server that runs the
// statement. So there must be one such server.

// checkClocks refuses what mixes the clocks of several servers, as far as it can be seen. The
// shape's table is there.
func (s *site) checkClocks(ctx context.Context, sh shape) error {
	if err := s.checkWriters(ctx); err != nil {
		return err
	}
	return s.checkReads(ctx, sh)
}

// checkWriters refuses a cluster whose nodes can all be written to.
func (s *site) checkWriters(ctx context.Context) error {
	if s.opts.OneWriter {
		return nil
	}
	size, err := s.show(ctx, "STATUS", "wsrep_cluster_size")
	if err != nil {
		return err
	}
	single, err := s.show(ctx, "VARIABLES", singlePrimary)
	if err != nil {
		return err
	}
	what := manyWriters(s.server.galera, size, single)
	if what == "" {
		return nil
	}
	return fmt.Errorf("%w: mysqllock: the server belongs to %s, and a lease that one of them wrote would end by the clock of another: if all clients always write to the same one, open with onewriter=true", driver.ErrUnsupported, what)
}

// singlePrimary is a variable of servers with group replication.
const singlePrimary = "group_replication_single_primary_mode"

// manyWriters words what a server says of its cluster; empty: it is the only one to write to.
func manyWriters(galera bool, size, single string) string {
	switch {
	case galera && size != "" && size != "0" && size != "1":
		return "a Galera cluster of " + size + " nodes"
	case strings.EqualFold(single, "OFF"):
		return "a replication group with several primaries"
	}
	return ""
}

// show is a global variable or status; empty if the server has none of that name.
func (s *site) show(ctx context.Context, kind, name string) (value string, err error) {
	err = s.db.QueryRowContext(ctx, "SHOW GLOBAL "+kind+" LIKE '"+name+"'").Scan(&name, &value)
	if absent(err) {
		return "", nil
	}
	return value, err
}

// serverSQL tells one server from another.
const serverSQL = "SELECT CONCAT(@@hostname, ':', @@port, ', server_id ', @@server_id) FROM (SELECT 1 AS one) o LEFT JOIN "

// readTries is how often a SELECT is sent: a proxy may send some of them to the primary.
const readTries = 4

// checkReads refuses a proxy that sends a SELECT to another server than those statements that
// write: a replica is behind, and has a clock of its own.
func (s *site) checkReads(ctx context.Context, sh shape) error {
	text := serverSQL + quoted(sh.table) + " ON `" + sh.key + "` = ''"
	writer, err := s.writer(ctx, text+" FOR UPDATE")
	if err != nil {
		return err
	}
	for range readTries {
		var reader string
		if err := s.db.QueryRowContext(ctx, text).Scan(&reader); err != nil {
			return err
		}
		if reader == writer {
			continue
		}
		if now, err := s.writer(ctx, text+" FOR UPDATE"); err != nil {
			return err
		} else if now != writer {
			return fmt.Errorf("mysqllock: the server that writes has changed from %s to %s", writer, now)
		}
		return fmt.Errorf("%w: mysqllock: a SELECT is answered by %s, and what writes by %s: a proxy in between shares them out, and the two have two clocks: want the primary itself, or a rule by which all statements of this user go there",
			driver.ErrUnsupported, reader, writer)
	}
	return nil
}

// writer is the server that runs transactions.
func (s *site) writer(ctx context.Context, text string) (name string, err error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return "", err
	}
	defer tx.Rollback()
	err = tx.QueryRowContext(ctx, text).Scan(&name)
	return name, err
}
