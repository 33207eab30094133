package pglock

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/distlock/distlock/driver"
)

// Strategy is how locks are kept.
type Strategy string

// The strategies.
const (
	// Row keeps locks in rows of a table. The default.
	Row Strategy = "row"

	// Advisory keeps locks as advisory locks of connections.
	Advisory Strategy = "advisory"
)

// Level is what an advisory lock belongs to.
type Level string

// The levels, for Advisory only. Locks of both exclude each other.
const (
	// Session locks belong to a connection, which may have many. The default.
	Session Level = "session"

	// Transaction locks belong to an open transaction, one each.
	Transaction Level = "transaction"
)

// Options are how a Backend uses PostgreSQL. The zero value, like a nil pointer, means the
// defaults. All users of a lock must agree on Strategy and Table.
type Options struct {
	// Strategy is Row if empty.
	Strategy Strategy

	// Level is Session if empty. It may be given with Advisory only.
	Level Level

	// Table is the table that the strategy keeps its rows in, with or without a schema;
	// letters, digits and underscores. The default is distlock_locks for Row and
	// distlock_fences for Advisory.
	Table string

	// Create makes the table if it isn't there. Without it a missing table is ErrInvalid.
	Create bool

	// Name is what Caps call the database; it must be the same in every process. The
	// default is made of the server's address, the database and the table.
	Name string
}

// defaultTables are the tables of the strategies.
var defaultTables = map[Strategy]string{Row: "distlock_locks", Advisory: "distlock_fences"}

// complete has the defaults filled in, and refuses what makes no sense.
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
	if c.Strategy == Advisory && c.Level == "" {
		c.Level = Session
	}
	return c, c.check()
}

func (o *Options) check() error {
	if o.Strategy != Row && o.Strategy != Advisory {
		return fmt.Errorf("%w: strategy %q: want %s or %s", driver.ErrInvalid, o.Strategy, Row, Advisory)
	}
	if o.Strategy != Advisory && o.Level != "" {
		return fmt.Errorf("%w: a level is for strategy %s only", driver.ErrInvalid, Advisory)
	}
	if o.Level != "" && o.Level != Session && o.Level != Transaction {
		return fmt.Errorf("%w: level %q: want %s or %s", driver.ErrInvalid, o.Level, Session, Transaction)
	}
	return checkTable(o.Table)
}

// longest is how many bytes PostgreSQL keeps of a name; it cuts off the rest.
const longest = 63

var word = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// checkTable refuses names that would have to be escaped, or that would be cut.
func checkTable(table string) error {
	parts := strings.Split(table, ".")
	for _, part := range parts {
		if !word.MatchString(part) || len(part) > longest || len(parts) > 2 {
			return fmt.Errorf("%w: table %q: want a name such as locks or app.locks, of letters, digits and underscores, each part of %d at most", driver.ErrInvalid, table, longest)
		}
	}
	return nil
}

// quote makes an identifier of a table's name that was checked.
func quote(table string) string {
	return `"` + strings.ReplaceAll(table, ".", `"."`) + `"`
}
