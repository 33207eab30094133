package fencesql_test

import (
	"database/sql"
	"errors"
	"math"
	"testing"

	"github.com/distlock/distlock/fence"
	"github.com/distlock/distlock/fence/fencesql"
)

// A type that embeds a *sql.DB, as in helper libraries, is not a transaction.
func TestNoTransactionInDisguise(t *testing.T) {
	each(t, func(t *testing.T, o opened) {
		g, c := o.guard(t), o.stock(t)
		disguised := struct{ *sql.DB }{o.db}
		if err := g.Enter(t.Context(), disguised, "a", 1); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("guard: %v", err)
		}
		if err := c.Enter(t.Context(), disguised, 7, 1); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("column: %v", err)
		}
	})
}

// The greatest fence works like any other, in all databases.
func TestGreatestFence(t *testing.T) {
	each(t, func(t *testing.T, o opened) {
		g := o.guard(t)
		if err := g.Do(t.Context(), o.db, "a", math.MaxInt64, nothing); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%v", err)
		}
		for range 2 {
			if err := g.Do(t.Context(), o.db, "a", math.MaxInt64-1, nothing); err != nil {
				t.Error(err)
			}
		}
		if err := g.Do(t.Context(), o.db, "a", 7, nothing); !errors.Is(err, fence.ErrStale) {
			t.Error(err)
		}
	})
}

// A row without a valid fence, such as in a table created by hand, never accepts 33 after 34. It may
// refuse all fences.
func TestRowsWithoutAFence(t *testing.T) {
	each(t, func(t *testing.T, o opened) {
		o.exec(t, "CREATE TABLE odd (resource VARCHAR(512) PRIMARY KEY, fence BIGINT)", "INSERT INTO odd VALUES ('none', NULL), ('less', -1)")
		g, err := fencesql.New(o.dialect, &fencesql.Options{Table: "odd"})
		if err != nil {
			t.Fatal(err)
		}
		for _, resource := range []string{"none", "less"} {
			err := g.Do(t.Context(), o.db, resource, 34, nothing)
			if err != nil {
				continue // not accepted at all
			}
			if err := g.Do(t.Context(), o.db, resource, 33, nothing); !errors.Is(err, fence.ErrStale) {
				t.Errorf("%s: 33 after 34: %v", resource, err)
			}
		}
	})
}
