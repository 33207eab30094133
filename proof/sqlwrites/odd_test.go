package sqlwrites_test

import (
	"database/sql"
	"math"
	"testing"

	"github.com/distlock/distlock/fence"
	"github.com/distlock/distlock/fence/fencesql"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// A type that embeds a *sql.DB, as in helper libraries, is not a transaction.
func TestNoTransactionInDisguise(t *testing.T) {
	each(t, func(t *testing.T, o opened) {
		g, c := o.guard(t), o.stock(t)
		disguised := struct{ *sql.DB }{o.db}
		expect.Be(t, g.Enter(t.Context(), disguised, "a", 1), fence.ErrInvalid, "guard")
		expect.Be(t, c.Enter(t.Context(), disguised, 7, 1), fence.ErrInvalid, "column")
	})
}

// The greatest fence works like any other, in all databases.
func TestGreatestFence(t *testing.T) {
	each(t, func(t *testing.T, o opened) {
		g := o.guard(t)
		expect.Be(t, g.Do(t.Context(), o.db, "a", math.MaxInt64, nothing), fence.ErrInvalid)
		for range 2 {
			expect.OK(t, g.Do(t.Context(), o.db, "a", math.MaxInt64-1, nothing))
		}
		expect.Be(t, g.Do(t.Context(), o.db, "a", 7, nothing), fence.ErrStale)
	})
}

// A row without a valid fence, such as in a table created by hand, never accepts 33 after 34. It may
// refuse all fences.
func TestRowsWithoutAFence(t *testing.T) {
	each(t, func(t *testing.T, o opened) {
		o.exec(t, "CREATE TABLE odd (resource VARCHAR(512) PRIMARY KEY, fence BIGINT)", "INSERT INTO odd VALUES ('none', NULL), ('less', -1)")
		g := must.Get(fencesql.New(o.dialect, &fencesql.Options{Table: "odd"}))(t)
		for _, resource := range []string{"none", "less"} {
			err := g.Do(t.Context(), o.db, resource, 34, nothing)
			if err != nil {
				continue // not accepted at all
			}
			expect.Be(t, g.Do(t.Context(), o.db, resource, 33, nothing), fence.ErrStale, resource, "33 after 34")
		}
	})
}
