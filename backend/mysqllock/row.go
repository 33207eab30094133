package mysqllock

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/sqlrow"
)

// rowTable is the table of strategy Row. Text is kept as bytes: sessions may have any
// character set.
const rowTable = `-- Locks of distlock, strategy row: one row for each name that was ever locked. Times are µs
-- since 1970. Deleting rows of locks that are free is safe only if the clock never goes back.
CREATE TABLE IF NOT EXISTS %s (
  k       BINARY(32) NOT NULL PRIMARY KEY, -- SHA-256 of the name
  name    BLOB NOT NULL,
  kind    TINYINT NOT NULL,                -- 1: mutex, 2: read/write lock, 4: semaphore
  lim     BIGINT NOT NULL,                 -- permits of the semaphore
  number  BIGINT NOT NULL,                 -- of the last grant; its fence is 1024 times that
  owner   VARBINARY(%d) NULL,              -- who holds alone, if until is not over
  granted BIGINT NOT NULL,                 -- number of the owner's grant
  since   BIGINT NOT NULL,
  until   BIGINT NOT NULL,
  meta    MEDIUMBLOB NULL,                 -- who the owner is, as JSON
  address VARBINARY(%d) NULL,              -- the user-level lock that the owner releases to notify waiters
  claims  MEDIUMBLOB NULL,                 -- readers, permits and places in line, as JSON
  claimed BIGINT NOT NULL,                 -- when the last of them ends
  rev     BIGINT NOT NULL,                 -- raised by each change
  waiting BIGINT NOT NULL                  -- until when somebody listens for a release
) ENGINE=InnoDB;
`

const addressLength = 64

func rowDDL(o Options) []string {
	return []string{fmt.Sprintf(rowTable, quoted(o.Table), sqlrow.MaxOwner, addressLength)}
}

func rowShape(o Options) shape {
	sh := shape{table: o.Table, key: "k", columns: []column{
		{name: "k", types: []string{"binary", "varbinary"}, length: len(sqlrow.Key{})},
		{name: "name", types: []string{"blob", "mediumblob", "longblob"}},
		{name: "kind", types: []string{"tinyint", "smallint", "int", "bigint"}},
		{name: "owner", types: bytesType, length: sqlrow.MaxOwner},
		{name: "address", types: bytesType, length: addressLength},
		{name: "meta", types: []string{"mediumblob", "longblob"}},
		{name: "claims", types: []string{"mediumblob", "longblob"}},
	}}
	for _, name := range []string{"lim", "number", "granted", "since", "until", "claimed", "rev", "waiting"} {
		sh.columns = append(sh.columns, column{name: name, types: bigType})
	}
	return sh
}

// row is the strategy Row.
type row struct {
	*sqlrow.Backend
	dialect *rowDialect
}

func newRow(ctx context.Context, s *site) (strategy, error) {
	if _, err := s.prepare(ctx, rowShape(s.opts)); err != nil {
		return nil, err
	}
	if err := s.checkClocks(ctx, rowShape(s.opts)); err != nil {
		return nil, err
	}
	if err := s.probeBytes(ctx); err != nil {
		return nil, err
	}
	d := &rowDialect{site: s, notifier: newNotifier(s.db)}
	if err := d.prepare(ctx, quoted(s.opts.Table)); err != nil {
		return nil, errors.Join(err, d.close())
	}
	o := sqlrow.Options{Package: "mysqllock", Name: s.name, Notifier: func(*sqlrow.Backend) sqlrow.Notifier { return d.notifier }}
	return &row{sqlrow.New(d, o), d}, nil
}

// probeBytes refuses sessions that convert what is sent: names would not be what they
// are to other sessions.
func (s *site) probeBytes(ctx context.Context) error {
	stmt, err := s.db.PrepareContext(ctx, "SELECT HEX(?), @@character_set_client, @@character_set_connection")
	if err != nil {
		return err
	}
	defer stmt.Close()
	var bytes []byte
	for b := range 256 {
		bytes = append(bytes, byte(b))
	}
	var text, client, connection string
	if err := stmt.QueryRowContext(ctx, bytes).Scan(&text, &client, &connection); err != nil {
		return err
	}
	if client != connection || !strings.EqualFold(text, hex.EncodeToString(bytes)) {
		return fmt.Errorf("%w: mysqllock: the pool's sessions convert text from %s to %s on its way: remove collation_connection and the like from the DSN",
			driver.ErrInvalid, client, connection)
	}
	return nil
}

// Close also ends the use of the pool, which the Backend closes if it is its own.
func (r *row) Close() error { return errors.Join(r.Backend.Close(), r.dialect.close()) }
