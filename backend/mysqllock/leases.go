package mysqllock

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
)

// leases are what UniqueIndex and Version have in common: a table with one row for each
// lock that is held, with an owner and the end of its lease.
type leases struct {
	*site
	naming naming
	table  string // quoted

	columns columnsOf // of the table; since and meta may be missing in one that others made
	index   string    // that makes names unique, quoted
	bump    string    // what else a renewal sets, with a comma at its end and the floor as parameter

	// revision is the column that bump raises; 0 without.
	revision string

	twice bool // there is a second table: read and others have the name twice

	read, free, list *sql.Stmt
	raise            *sql.Stmt // makes later fences greater, if a renewal does not
	renewals         chunks
	all              []*sql.Stmt

	shut atomic.Bool
}

const (
	// minTTL is about the longest that one write takes on a busy server: what is
	// shorter would end before it is known.
	minTTL = 10 * time.Millisecond

	// maxTTL keeps the sum of a clock and a TTL far from overflow.
	maxTTL = 100 * 365 * 24 * time.Hour

	// maxMeta is what a BLOB holds.
	maxMeta = 1<<16 - 1
)

// live is the condition that a lease lasts. A lease without an end, which another
// program may have written, does.
const live = "(expires > " + clockSQL + " OR expires IS NULL)"

// leaseColumns are those of every such table.
func leaseColumns() []column {
	return []column{
		{name: "name", types: textTypes},
		{name: "owner", types: textTypes, length: ownerLength},
		{name: "expires", types: bigType},
		{name: "since", types: bigType, optional: true},
		{name: "meta", types: longTypes, optional: true},
	}
}

// ownerLength is that of a UUID.
const ownerLength = 36

// newLeases checks the tables, the first of which has the leases.
func newLeases(ctx context.Context, s *site, shapes ...shape) (*leases, error) {
	columns, err := s.prepare(ctx, shapes...)
	if err != nil {
		return nil, err
	}
	if err := s.checkClocks(ctx, shapes[0]); err != nil {
		return nil, err
	}
	n, err := newNaming(columns["name"], s.server.charset)
	if err != nil {
		return nil, s.misfit(shapes[0], err)
	}
	l := &leases{site: s, naming: n, table: quoted(s.opts.Table), columns: columns, revision: "0"}
	l.index, err = s.indexOf(ctx, shapes[0])
	return l, err
}

// has tells whether the table has a column.
func (l *leases) has(column string) bool {
	_, ok := l.columns[column]
	return ok
}

// fill names columns beside expressions for them, without those that the table lacks.
func (l *leases) fill(pairs ...[2]string) (names, values, sets []string) {
	for _, p := range pairs {
		if l.has(p[0]) {
			names, values, sets = append(names, p[0]), append(values, p[1]), append(sets, p[0]+" = "+p[1])
		}
	}
	return names, values, sets
}

// args are the parameters of a statement that fill made, without those of columns that the
// table lacks.
func (l *leases) args(pairs ...arg) []any {
	var values []any
	for _, p := range pairs {
		if p.column == "" || l.has(p.column) {
			values = append(values, p.value)
		}
	}
	return values
}

// arg is a parameter, and the column that it is for.
type arg struct {
	column string
	value  any
}

// Caps: a mutex with fences.
func (l *leases) Caps() driver.Caps {
	return driver.Caps{
		Name: l.name, Modes: driver.Modes(driver.Exclusive), Fence: true, Floor: true, MinTTL: minTTL, MaxTTL: maxTTL,
	}
}

// Watch: the server has nothing that would tell.
func (l *leases) Watch(context.Context, driver.Request) (driver.Watch, error) {
	return driver.Watch{}, driver.ErrSkip
}

// Close ends the use of the pool, which the Backend closes if it is its own.
func (l *leases) Close() error {
	l.shut.Store(true)
	var errs []error
	for _, stmt := range l.all {
		errs = append(errs, stmt.Close())
	}
	return errors.Join(errs...)
}

// stmt prepares a statement, on each connection when it is first used there.
func (l *leases) stmt(ctx context.Context, into **sql.Stmt, text string) error {
	stmt, err := l.db.PrepareContext(ctx, text)
	if err != nil {
		return err
	}
	*into, l.all = stmt, append(l.all, stmt)
	return nil
}

// run runs a statement that commits by itself, and tells how many rows it changed.
func (l *leases) run(ctx context.Context, stmt *sql.Stmt, args ...any) (n int64, err error) {
	n, _, err = l.change(ctx, stmt, args)
	return n, err
}

// numbered runs a statement that commits by itself, and tells what it made the insert id;
// 0: it meant no row.
func (l *leases) numbered(ctx context.Context, stmt *sql.Stmt, args []any) (number int64, err error) {
	_, number, err = l.change(ctx, stmt, args)
	return number, err
}

// check refuses what can never be.
func (l *leases) check(h driver.Hold) error {
	switch {
	case l.shut.Load():
		return driver.ErrClosed
	case h.Mode != driver.Exclusive:
		return fmt.Errorf("%w: strategy %s has exclusive locks only", driver.ErrUnsupported, l.opts.Strategy)
	}
	return l.naming.check(h.Name)
}

func (l *leases) checkRequest(r driver.Request) error {
	if err := l.check(r.Hold); err != nil {
		return err
	}
	if r.Queue {
		return fmt.Errorf("%w: strategy %s has no line", driver.ErrUnsupported, l.opts.Strategy)
	}
	return checkTTL(r.TTL)
}

func checkTTL(ttl time.Duration) error {
	if ttl <= 0 || ttl > maxTTL {
		return fmt.Errorf("%w: TTL %v: want more than 0 and at most %v", driver.ErrInvalid, ttl, maxTTL)
	}
	return nil
}

// micros is a TTL in the server's unit, never shorter than it is.
func micros(ttl time.Duration) int64 {
	return int64((ttl + time.Microsecond - 1) / time.Microsecond)
}

func encodeMeta(meta map[string]string) ([]byte, error) {
	if len(meta) == 0 {
		return []byte{}, nil
	}
	text, err := json.Marshal(meta)
	if err == nil && len(text) > maxMeta {
		err = fmt.Errorf("%w: what is kept beside a lock has %d bytes, at most %d are possible", driver.ErrInvalid, len(text), maxMeta)
	}
	return text, err
}

// Release ends a hold, by a single statement.
func (l *leases) Release(ctx context.Context, h driver.Hold) error {
	err := l.check(h)
	if err != nil {
		return l.wrap("release", h.Name, err)
	}
	n, err := l.run(ctx, l.free, h.Name, h.Owner)
	if err == nil && n == 0 {
		err = driver.ErrLost
	}
	return l.wrap("release", h.Name, err)
}

// wrap says what failed.
func (s *site) wrap(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("mysqllock: %s %s: %w", op, driver.Quote(name), err)
}
