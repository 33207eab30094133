package sqlwrites_test

import (
	"database/sql"
	"errors"
	"testing"

	"github.com/distlock/distlock/fence"
	"github.com/distlock/distlock/fence/fencesql"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// stock creates a table with a fence in each row.
func (o opened) stock(t *testing.T) *fencesql.Column {
	t.Helper()
	o.exec(t, "CREATE TABLE stock (sku INT PRIMARY KEY, quantity INT NOT NULL, fence BIGINT NOT NULL DEFAULT 0)",
		"INSERT INTO stock (sku, quantity) VALUES (7, 100), (8, 100)")
	c := must.Get(fencesql.NewColumn(o.dialect, fencesql.Names{Table: "stock", Key: "sku", Fence: "fence"}))(t)
	return c
}

func TestColumnLetsGreaterFencesIn(t *testing.T) {
	each(t, func(t *testing.T, o opened) {
		c := o.stock(t)
		for _, step := range []struct {
			key   any
			fence uint64
			want  error
		}{
			{7, 33, nil}, {7, 33, nil}, {7, 34, nil}, {7, 33, fence.ErrStale}, {8, 1, nil},
			{9, 1, sql.ErrNoRows}, {7, 0, fence.ErrInvalid}, {7, 1 << 63, fence.ErrInvalid},
		} {
			expect.Be(t, c.Do(t.Context(), o.db, step.key, step.fence, nothing), step.want, step.key, step.fence)
		}
		expect.Equal(t, o.number(t, "SELECT fence FROM stock WHERE sku = 7"), 34, "the row has")
	})
}

func TestChanged(t *testing.T) {
	each(t, func(t *testing.T, o opened) {
		c := o.stock(t)
		update := "UPDATE stock SET quantity = ?, fence = ? WHERE sku = ? AND fence <= ?"
		if o.dialect == fencesql.Postgres {
			update = "UPDATE stock SET quantity = $1, fence = $2 WHERE sku = $3 AND fence <= $4"
		}
		for _, step := range []struct {
			sku, quantity int
			fence         uint64
			want          error
		}{
			{7, 99, 33, nil},
			{7, 99, 33, nil}, // changes nothing, so MySQL counts no row
			{7, 90, 34, nil},
			{7, 99, 33, fence.ErrStale},
			{9, 99, 33, sql.ErrNoRows},
		} {
			result := must.Get(o.db.ExecContext(t.Context(), update, step.quantity, step.fence, step.sku, step.fence))(t)
			if err := c.Changed(t.Context(), o.db, result, step.sku, step.fence); !errors.Is(err, step.want) {
				t.Errorf("%+v: %v", step, err)
			}
		}
		expect.Equal(t, o.number(t, "SELECT quantity FROM stock WHERE sku = 7"), 90, "are left")
	})
}

// Changed returns an error for a statement with a condition beyond key and fence that changed no row. A
// statement that changed several rows has no single fence, and is refused, too.
func TestChangedRefuses(t *testing.T) {
	each(t, func(t *testing.T, o opened) {
		c := o.stock(t)
		result := must.Get(o.db.ExecContext(t.Context(), "UPDATE stock SET fence = 33 WHERE sku = 7 AND fence <= 33 AND quantity > 1000"))(t)
		if err := c.Changed(t.Context(), o.db, result, 7, 33); err == nil || errors.Is(err, fence.ErrStale) {
			t.Errorf("another condition: %v", err)
		}
		result = must.Get(o.db.ExecContext(t.Context(), "UPDATE stock SET fence = 33 WHERE fence <= 33"))(t)
		expect.Be(t, c.Changed(t.Context(), o.db, result, 7, 33), fence.ErrInvalid, "two rows")
		expect.Be(t, c.Changed(t.Context(), o.db, result, 7, 0), fence.ErrInvalid, "fence 0")
	})
}

// Changed compares with the latest row. It ignores the transaction's older snapshot.
func TestChangedLooksPastTheSnapshot(t *testing.T) {
	o := databases["mariadb"](t)
	c := o.stock(t)
	must.OK(t, c.Do(t.Context(), o.db, 7, 33, nothing))
	tx := o.begin(t, sql.LevelRepeatableRead)
	var quantity int
	must.OK(t, tx.QueryRowContext(t.Context(), "SELECT quantity FROM stock").Scan(&quantity))
	must.OK(t, c.Do(t.Context(), o.db, 7, 34, nothing))
	result := must.Get(tx.ExecContext(t.Context(), "UPDATE stock SET quantity = 99, fence = 33 WHERE sku = 7 AND fence <= 33"))(t)
	expect.Be(t, c.Changed(t.Context(), tx, result, 7, 33), fence.ErrStale)
}

func TestColumnReadBeforeEnter(t *testing.T) {
	o := databases["mariadb"](t)
	c := o.stock(t)
	tx := o.begin(t, sql.LevelRepeatableRead)
	must.Equal(t, o.number(t, "SELECT COUNT(*) FROM stock"), 2)
	var quantity int
	must.OK(t, tx.QueryRowContext(t.Context(), "SELECT quantity FROM stock").Scan(&quantity))
	must.OK(t, c.Do(t.Context(), o.db, 7, 34, nothing))
	expect.Be(t, c.Enter(t.Context(), tx, 7, 35), fencesql.ErrSnapshot)
}

func TestColumnsOfAnotherShape(t *testing.T) {
	each(t, func(t *testing.T, o opened) {
		o.exec(t, "CREATE TABLE odd (id INT PRIMARY KEY, fence BIGINT)", "INSERT INTO odd VALUES (1, NULL), (2, -5)")
		for _, key := range []string{"1", "2"} {
			c := must.Get(fencesql.NewColumn(o.dialect, fencesql.Names{Table: "odd", Key: "id", Fence: "fence"}))(t)
			if err := c.Do(t.Context(), o.db, key, 33, nothing); o.dialect == fencesql.MySQL && !errors.Is(err, fence.ErrInvalid) {
				t.Errorf("row %s: %v", key, err)
			}
		}
		for _, n := range []fencesql.Names{{}, {Table: "odd", Key: "id"}, {Table: "odd", Key: "i d", Fence: "fence"}} {
			if _, err := fencesql.NewColumn(o.dialect, n); !errors.Is(err, fence.ErrInvalid) {
				t.Errorf("%+v: %v", n, err)
			}
		}
		missing := must.Get(fencesql.NewColumn(o.dialect, fencesql.Names{Table: "odd", Key: "id", Fence: "token"}))(t)
		if err := missing.Do(t.Context(), o.db, 1, 33, nothing); err == nil || errors.Is(err, fence.ErrStale) {
			t.Errorf("no such column: %v", err)
		}
	})
}

func TestBinaryKeys(t *testing.T) {
	o := databases["mariadb"](t)
	o.exec(t, "CREATE TABLE files (id BINARY(4) PRIMARY KEY, fence BIGINT NOT NULL DEFAULT 0)", "INSERT INTO files (id) VALUES (x'FF00FE01')")
	c := must.Get(fencesql.NewColumn(o.dialect, fencesql.Names{Table: "files", Key: "id", Fence: "fence"}))(t)
	key := []byte{0xff, 0, 0xfe, 1}
	must.OK(t, c.Do(t.Context(), o.db, key, 34, nothing))
	var stale *fence.StaleError
	if err := c.Do(t.Context(), o.db, key, 33, nothing); !errors.As(err, &stale) || stale.Resource != "files ff00fe01" {
		t.Errorf("%v", err)
	}
}
