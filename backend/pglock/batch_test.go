package pglock

import (
	"errors"
	"fmt"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/sqlrow"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// batchOf returns requests for the locks of names, with Owners of their own.
func batchOf(names ...string) (takes []sqlrow.TakeRequest, holds []sqlrow.HoldKey) {
	for _, name := range names {
		t := sqlrow.TakeRequest{Name: name, Kind: driver.Exclusive, Owner: driver.NewOwner(), TTL: minutes, Meta: []byte(`{"pid":"7"}`)}
		takes, holds = append(takes, t), append(holds, sqlrow.HoldKey{Name: name, Owner: t.Owner})
	}
	return takes, holds
}

// One statement takes the locks that are free, and says which. Names that are held, have readers or a locked
// row, or no row, do not keep the others waiting. The same is true of releases.
func TestBatches(t *testing.T) {
	t.Parallel()
	plain := testserver.SharedPostgres(t).Database(t)
	b := open(t, with(t, plain, "create", "true"))
	d := &rowDialect{b.database, newRowStatements(b.database.opts.Table, "channel")}
	names := []string{"free", "held", "read", "locked", "new", `quo"ted\`, "last"}
	for _, name := range names {
		r := request(name)
		if name == "read" {
			r.Mode = driver.Read
		}
		if name == "new" {
			continue
		}
		take(t, b, r)
		if name != "held" && name != "read" {
			release(t, b, r)
		}
	}
	tx := lockRow(t, testserver.SharedPostgres(t).DB(t, plain), "locked")
	takes, holds := batchOf(names...)
	numbers, err := d.TakeAll(t.Context(), takes)
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		taken := name == "free" || name == `quo"ted\` || name == "last"
		if (numbers[i] > 0) != taken {
			t.Errorf("%s: number %d", name, numbers[i])
		}
		if !taken {
			continue
		}
		info, err := b.Inspect(t.Context(), name)
		if err != nil || len(info.Holders) != 1 || info.Holders[0].Owner != holds[i].Owner || info.Holders[0].Meta["pid"] != "7" ||
			info.Holders[0].Fence>>10 != uint64(numbers[i]) {
			t.Errorf("%s, taken with number %d: %+v, %v", name, numbers[i], info, err)
		}
	}
	tx.Rollback()
	if err := d.Mark(t.Context(), sqlrow.KeyOf("free"), minutes); err != nil {
		t.Fatal(err)
	}
	lockRow(t, testserver.SharedPostgres(t).DB(t, plain), "last")
	freed, err := d.FreeAll(t.Context(), holds)
	for i, name := range names {
		want := sqlrow.Freed{Freed: name == "free" || name == `quo"ted\`, Waited: name == "free"}
		if err != nil || freed[i] != want {
			t.Errorf("%s: %+v, %v, want %+v", name, freed[i], err, want)
		}
	}
}

// A statement that the server refuses because of one value has changed nothing.
func TestBadValueInBatch(t *testing.T) {
	t.Parallel()
	b := open(t, fresh(t))
	d := &rowDialect{b.database, newRowStatements(b.database.opts.Table, "channel")}
	var names []string
	for i := range 3 {
		r := request(fmt.Sprint("lock ", i))
		take(t, b, r)
		release(t, b, r)
		names = append(names, r.Name)
	}
	takes, _ := batchOf(names...)
	takes[1].Owner = "bad\x00owner"
	if _, err := d.TakeAll(t.Context(), takes); !errors.Is(err, sqlrow.ErrUndone) {
		t.Fatalf("%v, want ErrUndone", err)
	}
	for _, name := range names {
		if info, err := b.Inspect(t.Context(), name); err != nil || len(info.Holders) > 0 {
			t.Errorf("%s: %+v, %v", name, info, err)
		}
	}
}
