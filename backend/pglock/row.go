package pglock

import (
	"context"

	"github.com/distlock/distlock/internal/sqlrow"
)

// rowTable is the table of strategy Row. Every change leaves the key alone and finds
// room in its page, so that no index is touched (a HOT update).
func rowTable(table string) *tableSpec {
	return &tableSpec{table: table, storage: "fillfactor = 50", columns: []columnSpec{
		{name: "k", kind: "bytea", note: "SHA-256 of the name"},
		{name: "name", kind: "text"},
		{name: "kind", kind: "smallint", note: "1: mutex, 2: read/write lock, 4: semaphore"},
		{name: "lim", kind: "integer", note: "permits of a semaphore"},
		{name: "number", kind: "bigint", note: "of the last grant; fences are 1024 times this"},
		{name: "owner", kind: "text", null: true, note: "who holds alone"},
		{name: "granted", kind: "bigint", note: "the owner's number"},
		{name: "since", kind: "bigint", note: "µs since 1970, as are until and waiting"},
		{name: "until", kind: "bigint"},
		{name: "meta", kind: "text", null: true, note: "JSON, what the owner tells of itself"},
		{name: "claims", kind: "text", null: true, note: "JSON: readers, permits, places in line"},
		{name: "claimed", kind: "bigint", note: "when the last of the claims ends"},
		{name: "rev", kind: "bigint", note: "raised by every change"},
		{name: "waiting", kind: "bigint", note: "until when somebody listens"},
	}}
}

func rowSchema(o Options) string { return rowTable(o.Table).ddl() }

// newRow makes strategy Row of a table that is there, or is to be made.
func newRow(ctx context.Context, s *database) (strategy, error) {
	t, err := s.ensureTable(ctx, rowTable(s.opts.Table))
	if err != nil {
		return nil, err
	}
	d := newRowDialect(s, t.channel())
	opts := sqlrow.Options{Package: "pglock", Name: s.name}
	if s.listens() {
		opts.Notifier = func(b *sqlrow.Backend) sqlrow.Notifier { return newBell(s, t.channel(), b) }
	}
	return sqlrow.New(d, opts), nil
}

// listens says whether there can be a connection that listens, with one left for calls.
func (s *database) listens() bool {
	return s.pgx && !s.pooled && s.limit != 1
}
