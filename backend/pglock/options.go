package pglock

import (
	"fmt"
	"strings"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/sqlname"
)

// Strategy is how locks are kept.
type Strategy string

// The strategies.
const (
	// Row keeps locks in rows of a table. The default.
	Row Strategy = "row"

	// Advisory keeps locks as advisory locks of connections. It needs PostgreSQL 14 or later.
	Advisory Strategy = "advisory"
)

// Pooler is the mode of a pooler between client and server, in PgBouncer's words.
type Pooler string

// The modes of poolers.
const (
	// SessionPooler gives a client the same connection of the server until the client disconnects.
	SessionPooler Pooler = "session"

	// TransactionPooler may give each transaction, or each statement, another connection.
	TransactionPooler Pooler = "transaction"
)

// Options are how a Backend uses PostgreSQL. The zero value and a nil pointer mean the
// defaults. All users of a lock must agree on Strategy and Table.
type Options struct {
	// Strategy is Row if empty.
	Strategy Strategy

	// Table is the strategy's table, with or without a schema: letters, digits and underscores.
	// The default is distlock_locks for Row and distlock_fences for Advisory.
	Table string

	// Create makes the table if it is missing. Without it a missing table is ErrInvalid.
	Create bool

	// Pooler is the mode of a pooler in between. If empty, there must be none: one that is noticed
	// is ErrInvalid. Drivers other than pgx don't notice any, so with them Advisory needs SessionPooler here,
	// which also says that there is no pooler.
	Pooler Pooler

	// Name identifies the database in Caps; it must be the same in every process. The default
	// is made of the server's address, the database and the table.
	Name string
}

// defaultTables are the tables of the strategies.
var defaultTables = map[Strategy]string{Row: "distlock_locks", Advisory: "distlock_fences"}

// complete returns the options with defaults, or an error for invalid ones.
func (o *Options) complete() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	if c.Strategy == "" {
		c.Strategy = Row
	}
	if c.Table == "" {
		c.Table = defaultTables[c.Strategy]
	}
	return c, c.check()
}

func (o *Options) check() error {
	switch {
	case o.Strategy != Row && o.Strategy != Advisory:
		return fmt.Errorf("%w: strategy %q: want %s or %s", driver.ErrInvalid, o.Strategy, Row, Advisory)
	case o.Pooler != "" && o.Pooler != SessionPooler && o.Pooler != TransactionPooler:
		return fmt.Errorf("%w: pooler %q: want %s or %s", driver.ErrInvalid, o.Pooler, SessionPooler, TransactionPooler)
	case o.Pooler == TransactionPooler && o.Strategy == Advisory:
		return fmt.Errorf("%w: pooler=%s: advisory locks belong to a connection, and such a pooler changes it: connect to the server itself, or use strategy %s", driver.ErrInvalid, TransactionPooler, Row)
	}
	return checkTable(o.Table)
}

// maxNameBytes is how many bytes PostgreSQL keeps of a name; it cuts off the rest.
const maxNameBytes = 63

// checkTable refuses names that PostgreSQL would cut, or that would need escaping.
func checkTable(table string) error {
	parts := strings.Split(table, ".")
	for _, part := range parts {
		if !sqlname.Valid(part) || len(part) > maxNameBytes || len(parts) > 2 {
			return fmt.Errorf("%w: table %q: want a name such as locks or app.locks, of letters, digits and underscores, each part of %d at most", driver.ErrInvalid, table, maxNameBytes)
		}
	}
	return nil
}

// quote returns a checked table name as an SQL identifier.
func quote(table string) string { return sqlname.Quote(table, false) }
