package mysqllock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// The smallest pool that a strategy takes has a connection for others all the time.
func TestSmallestPool(t *testing.T) {
	const least = 3
	bothOnConnections(t, func(t *testing.T, s Strategy) {
		srv := testserver.SharedMariaDB(t)
		db := srv.DB(t, srv.Database(t))
		ctx, cancel := context.WithTimeout(t.Context(), patient)
		defer cancel()
		db.SetMaxOpenConns(least - 1)
		if b, err := New(ctx, db, &Options{Strategy: s, Create: true}); !errors.Is(err, driver.ErrInvalid) {
			t.Fatalf("with %d connections: %v, %v; want ErrInvalid", least-1, b, err)
		}
		db.SetMaxOpenConns(least)
		b, err := New(ctx, db, &Options{Strategy: s, Create: true})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		ping := func() error {
			soon, cancel := context.WithTimeout(ctx, 8*time.Second) // spares are kept for longer
			defer cancel()
			return db.PingContext(soon)
		}
		if err := ping(); err != nil {
			t.Errorf("after New: %v", err)
		}
		r := request("x", 30*time.Second)
		take(t, b, r)
		if err := ping(); err != nil {
			t.Errorf("beside a hold: %v", err)
		}
		if err := b.Release(t.Context(), r.Hold); err != nil {
			t.Error(err)
		}
	})
}
