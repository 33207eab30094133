package pglock

import (
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/connlock"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// What a connection is asked for outlasts the end of an attempt on it, which ends a transaction.
func TestLeaseOutlastsAnAttempt(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	for _, level := range []Level{Session, Transaction} {
		t.Run(string(level), func(t *testing.T) { leaseOutlastsAnAttempt(t, pg, level) })
	}
}

func TestLongLeaseOutlastsAnAttemptOnTheOldest(t *testing.T) {
	t.Parallel()
	leaseOutlastsAnAttempt(t, testserver.SharedPostgresVersion(t, "12"), Session)
}

func leaseOutlastsAnAttempt(t *testing.T, pg *testserver.PostgresServer, level Level) {
	b := open(t, with(t, pg.Database(t), "strategy", "advisory", "level", string(level), "create", "true"))
	d := newAdvisoryDialect(b.database)
	held, refused := pinLink(t, d), pinLink(t, d)
	l := connlock.Lock{Name: "lock", Key: d.Key("lock"), Owner: driver.NewOwner(), Probe: true}
	wantTaken(t, held, l, true)
	wantTaken(t, refused, l, false)
	if err := refused.Lease(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := refused.Undo(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if got := silence(t, refused); got != "1h" {
		t.Errorf("the server ends a connection that is silent for %s, want 1h", got)
	}
}

func pinLink(t *testing.T, d *advisoryDialect) connlock.Conn {
	t.Helper()
	conn, err := d.db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	k, err := d.NewConn(t.Context(), conn, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

func wantTaken(t *testing.T, k connlock.Conn, l connlock.Lock, want bool) {
	t.Helper()
	if _, ok, err := k.TryLock(t.Context(), l); ok != want || err != nil {
		t.Fatalf("taken: %v, %v", ok, err)
	}
}

// silence is for how long the server lets a connection be silent in a transaction.
func silence(t *testing.T, k connlock.Conn) (d string) {
	t.Helper()
	tx := &connlock.Tx{}
	switch k := k.(type) {
	case *txConn:
		tx = &k.tx
	case *sessionConn:
		tx = &k.tx
	}
	if err := tx.Querier().QueryRowContext(t.Context(), "SHOW idle_in_transaction_session_timeout").Scan(&d); err != nil {
		t.Fatal(err)
	}
	return d
}
