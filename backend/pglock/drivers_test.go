package pglock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/jackc/pgx/v5/stdlib"
)

// Statements mean the same however a driver sends them.
func TestModesOfPgx(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			everything(t, open(t, with(t, fresh(t), "default_query_exec_mode", mode)))
		})
	}
}

// everything makes each statement of strategy Row work.
func everything(t *testing.T, b *Backend) {
	t.Helper()
	mine, theirs := request(`it's "a" \ lock, 100 %`), request(`it's "a" \ lock, 100 %`)
	mine.Meta = map[string]string{"host": `h'"\`}
	g := take(t, b, mine)
	mine.Floor = g.Last() + 1<<20
	if err := errors.Join(b.Renew(t.Context(), []driver.Hold{mine.Hold})...); err != nil {
		t.Errorf("renew: %v", err)
	}
	theirs.Queue = true
	held(t, b, theirs)
	w, err := b.Watch(t.Context(), theirs)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	info, err := b.Inspect(t.Context(), mine.Name)
	if err != nil || len(info.Holders) != 1 || info.Holders[0].Meta["host"] != mine.Meta["host"] || len(info.Waiters) != 1 {
		t.Errorf("inspect: %+v, %v", info, err)
	}
	var names []string
	err = b.List(t.Context(), "it's", func(name string) bool { names = append(names, name); return true })
	if err != nil || len(names) != 1 || names[0] != mine.Name {
		t.Errorf("list: %q, %v", names, err)
	}
	release(t, b, mine)
	ready(t, w)
	if next := take(t, b, theirs); next.Fence <= mine.Floor {
		t.Errorf("fence %d, want more than %d", next.Fence, mine.Floor)
	}
	release(t, b, theirs)
	permit := request("permits")
	permit.Mode, permit.Limit = driver.Counted, 2
	take(t, b, permit)
	release(t, b, permit)
}

// plainConnector is another driver than pgx's, as far as one can see: it prepares, and
// takes the types of database/sql only.
type plainConnector struct{ sqldriver.Connector }

type plainConn struct{ sqldriver.Conn }

func (c plainConnector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	return plainConn{conn}, err
}

func TestAnotherDriver(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	url := pg.Database(t)
	db := sql.OpenDB(plainConnector{stdlib.GetConnector(*mustConfig(t, url))})
	defer db.Close()
	b, err := New(t.Context(), db, &Options{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	everything(t, b)
	if n := sessions(t, pg, url, listening); n != "0" {
		t.Errorf("%s connections listen", n)
	}
}
