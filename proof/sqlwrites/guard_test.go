package sqlwrites_test

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/distlock/distlock/fence"
	"github.com/distlock/distlock/fence/fencesql"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

func nothing(*sql.Tx) error { return nil }

func TestOnlyGreaterFencesAreLetIn(t *testing.T) {
	each(t, func(t *testing.T, o opened) {
		g := o.guard(t)
		for _, step := range []struct {
			resource string
			fence    uint64
			seen     uint64 // of a refusal
		}{
			{"a", 33, 0}, {"a", 33, 0}, {"a", 34, 0}, {"a", 33, 34}, {"a", 34, 0},
			{"A", 1, 0}, {"a ", 1, 0}, {"ä", 1, 0}, {strings.Repeat("n", fence.MaxResource), 1, 0}, // each is a separate resource
			{"a", math.MaxInt64 - 1, 0}, {"a", 1<<53 + 1, math.MaxInt64 - 1},
		} {
			err := g.Do(t.Context(), o.db, step.resource, step.fence, nothing)
			var stale *fence.StaleError
			switch {
			case step.seen == 0 && err != nil:
				t.Errorf("%q %d: %v", step.resource, step.fence, err)
			case step.seen == 0:
			case !errors.Is(err, fence.ErrStale) || !errors.As(err, &stale):
				t.Errorf("%q %d: %v, want it to be stale", step.resource, step.fence, err)
			case *stale != (fence.StaleError{Resource: step.resource, Fence: step.fence, Seen: step.seen}):
				t.Errorf("%q %d: %+v", step.resource, step.fence, stale)
			}
		}
	})
}

// A rollback also undoes Enter.
func TestRollback(t *testing.T) {
	each(t, func(t *testing.T, o opened) {
		g := o.guard(t)
		failure := errors.New("no")
		for _, f := range []uint64{34, 35} {
			must.Be(t, g.Do(t.Context(), o.db, "a", f, func(*sql.Tx) error { return failure }), failure)
		}
		expect.OK(t, g.Do(t.Context(), o.db, "a", 33, nothing))
	})
}

func TestDoCommits(t *testing.T) {
	each(t, func(t *testing.T, o opened) {
		g := o.guard(t)
		o.exec(t, "CREATE TABLE stock (n INT)")
		insert := func(tx *sql.Tx) error {
			_, err := tx.ExecContext(t.Context(), "INSERT INTO stock VALUES (7)")
			return err
		}
		must.OK(t, g.Do(t.Context(), o.db, "a", 1, insert))
		expect.Equal(t, o.number(t, "SELECT n FROM stock"), 7)
	})
}

func TestBadInput(t *testing.T) {
	each(t, func(t *testing.T, o opened) {
		g := o.guard(t)
		tx := o.begin(t, sql.LevelDefault)
		for name, err := range map[string]error{
			"fence 0":        g.Enter(t.Context(), tx, "a", 0),
			"fence too big":  g.Enter(t.Context(), tx, "a", 1<<63),
			"no resource":    g.Enter(t.Context(), tx, "", 1),
			"long resource":  g.Enter(t.Context(), tx, strings.Repeat("n", fence.MaxResource+1), 1),
			"NUL":            g.Enter(t.Context(), tx, "a\x00b", 1),
			"no transaction": g.Enter(t.Context(), o.db, "a", 1),
		} {
			expect.Be(t, err, fence.ErrInvalid, name)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		expect.Be(t, g.Do(ctx, o.db, "a", 1, nothing), context.Canceled, "a context that has ended")
	})
	for _, table := range []string{"a b", "a.b.c", "a;DROP", "`a`", ".a", "a."} {
		if _, err := fencesql.New(fencesql.MySQL, &fencesql.Options{Table: table}); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("table %q: %v", table, err)
		}
	}
	expect.Be(t, expect.Err(fencesql.New(0, nil)), fence.ErrInvalid, "no dialect")
}

func TestCheckRefuses(t *testing.T) {
	each(t, func(t *testing.T, o opened) {
		check := func(name string, d fencesql.Dialect, table string) {
			g, err := fencesql.New(d, &fencesql.Options{Table: table})
			if err == nil {
				err = g.Check(t.Context(), o.db)
			}
			if !errors.Is(err, fence.ErrInvalid) || !strings.Contains(err.Error(), "CREATE TABLE") {
				t.Errorf("%s: %v", name, err)
			}
		}
		o.guard(t)
		check("no such table", o.dialect, "missing")
		o.exec(t, "CREATE TABLE other (a INT, b INT)")
		check("other columns", o.dialect, "other")
		o.exec(t, "CREATE TABLE nokey (resource VARCHAR(512), fence BIGINT)")
		if o.dialect != fencesql.MySQL { // in MySQL only the second resource shows it
			check("no key", o.dialect, "nokey")
		}
		for _, d := range []fencesql.Dialect{fencesql.MySQL, fencesql.Postgres, fencesql.SQLite} {
			if d != o.dialect && !(d == fencesql.Postgres && o.dialect == fencesql.SQLite) {
				check("as "+d.String(), d, fencesql.DefaultTable)
			}
		}
		if o.dialect == fencesql.SQLite {
			return // its columns accept any type
		}
		o.exec(t, "CREATE TABLE small (resource VARCHAR(512) PRIMARY KEY, fence INT NOT NULL)")
		check("small fences", o.dialect, "small")
	})
}

func TestCheckRefusesMyISAM(t *testing.T) {
	o := databases["mariadb"](t)
	o.exec(t, "CREATE TABLE flat (resource VARBINARY(512) PRIMARY KEY, fence BIGINT NOT NULL) ENGINE=MyISAM")
	g := must.Get(fencesql.New(fencesql.MySQL, &fencesql.Options{Table: "flat"}))(t)
	if err := g.Check(t.Context(), o.db); !errors.Is(err, fence.ErrInvalid) || !strings.Contains(err.Error(), "engine") {
		t.Error(err)
	}
}

// Two resources stay distinct on a server that truncates long values silently.
func TestCheckWithoutStrictMode(t *testing.T) {
	o := databases["mariadb"](t)
	o.db.SetMaxOpenConns(1)
	o.exec(t, "SET SESSION sql_mode = ''",
		"CREATE TABLE small (resource VARBINARY(512) PRIMARY KEY, fence INT NOT NULL)",
		"CREATE TABLE narrow (resource VARBINARY(20) PRIMARY KEY, fence BIGINT NOT NULL)")
	for _, table := range []string{"small", "narrow"} {
		g := must.Get(fencesql.New(fencesql.MySQL, &fencesql.Options{Table: table}))(t)
		expect.Be(t, g.Check(t.Context(), o.db), fence.ErrInvalid, table)
	}
}

func TestSchemaOfAnotherName(t *testing.T) {
	o := databases["postgres"](t)
	o.exec(t, "CREATE SCHEMA locks")
	g, err := fencesql.New(o.dialect, &fencesql.Options{Table: "locks.fences"})
	if err == nil {
		err = g.Create(t.Context(), o.db)
	}
	must.OK(t, err)
	if err := g.Do(t.Context(), o.db, "a", 7, nothing); err != nil || o.number(t, "SELECT fence FROM locks.fences") != 7 {
		t.Error(err)
	}
}
