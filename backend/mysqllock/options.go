package mysqllock

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/distlock/distlock/driver"
)

// Strategy is how locks are kept in the database. All users of a table must agree on it.
type Strategy string

// The strategies. All but Session and ForUpdate keep leases, which end by the server's
// clock after their TTL if the holder died, and hold no connection for a lock.
const (
	// Row keeps one row for each lock, which is never deleted. It has all modes and
	// fair lines. A free lock costs one statement, a release one; waiters are woken
	// through one more connection of the process that holds. The default.
	Row Strategy = "row"

	// UniqueIndex inserts a row to lock and deletes it to unlock: for teams that
	// have such a table. Exclusive only; waiters poll. A lock costs two statements,
	// its release one, and a busy lock costs deadlocks, which are met by retries.
	UniqueIndex Strategy = "unique"

	// Version reads a row and changes it if its version is still the one that was read.
	// Exclusive only; waiters poll. A lock costs two statements, its release one.
	Version Strategy = "version"

	// ForUpdate holds a row by SELECT … FOR UPDATE in a transaction that stays open, on
	// a connection of its own for each lock and each waiter. Exclusive only. A lock
	// ends with its connection.
	ForUpdate Strategy = "forupdate"

	// Session holds locks by GET_LOCK on a few connections that stay open. Exclusive
	// only. A lock ends with its connection.
	Session Strategy = "session"
)

// leases says that a strategy keeps leases in tables.
func (s Strategy) leases() bool { return s == Row || s == UniqueIndex || s == Version }

// strategies are all, the default first; each with its table.
var strategies = []struct {
	name  Strategy
	table string
}{
	{Row, "distlock_locks"},
	{UniqueIndex, "distlock_unique"},
	{Version, "distlock_versions"},
	{ForUpdate, "distlock_mutexes"},
	{Session, "distlock_sessions"},
}

// Strategies lists all strategies, the default first.
func Strategies() []Strategy {
	var all []Strategy
	for _, s := range strategies {
		all = append(all, s.name)
	}
	return all
}

// Options for New and Schema. The zero value, like a nil pointer, means the defaults.
type Options struct {
	// Strategy is Row unless it says otherwise.
	Strategy Strategy

	// Table is the table's name, with or without that of a database before it:
	// "locks", "app.locks". Letters, digits and underscores. Empty: distlock_locks for
	// Row, distlock_unique, distlock_versions, distlock_mutexes or distlock_sessions
	// for the others.
	Table string

	// Create makes the tables when they are missing. Without it a missing table is
	// refused, with a word on how to make it.
	Create bool

	// OneWriter promises, for a cluster whose nodes can all be written to, that all users of
	// the table write to the same node at any time. Without it Row and Version refuse a
	// Galera cluster of several nodes and a replication group with several primaries: a
	// lease ends by the clock of the node that is asked.
	OneWriter bool
}

func (o *Options) complete() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	c.Strategy = cmp.Or(c.Strategy, Row)
	i := slices.Index(Strategies(), c.Strategy)
	if i < 0 {
		return c, fmt.Errorf("%w: strategy %q: want one of %s", driver.ErrInvalid, c.Strategy, listed())
	}
	c.Table = cmp.Or(c.Table, strategies[i].table)
	return c, checkTable(c.Table)
}

func listed() string {
	var names []string
	for _, s := range Strategies() {
		names = append(names, string(s))
	}
	return strings.Join(names, ", ")
}

var tableName = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*\.)?[A-Za-z_][A-Za-z0-9_]*$`)

// maxTable leaves room for what is added to the names of second tables; the server's
// own limit is 64.
const maxTable = 48

func checkTable(name string) error {
	_, table, found := strings.Cut(name, ".")
	if !found {
		table = name
	}
	switch {
	case !tableName.MatchString(name):
		return fmt.Errorf("%w: table %q: want letters, digits and underscores, such as locks or app.locks", driver.ErrInvalid, name)
	case len(table) > maxTable:
		return fmt.Errorf("%w: table %q has %d characters, at most %d are possible", driver.ErrInvalid, name, len(table), maxTable)
	}
	return nil
}

// quoted is a table's name as statements have it.
func quoted(table string) string {
	return "`" + strings.ReplaceAll(table, ".", "`.`") + "`"
}
