package pglock

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/testserver"
)

// A pooler is found also if nobody else uses it, and whichever connection it gives next.
func TestPoolersAreFound(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	url := pg.Database(t)
	for _, c := range []struct {
		mode     string
		settings []string
		want     bool
	}{
		{"transaction", nil, true},
		{"transaction", []string{"default_pool_size=1"}, true},
		{"transaction", []string{"default_pool_size=2", "server_round_robin=1"}, true},
		{"transaction", []string{"default_pool_size=3", "min_pool_size=3", "server_round_robin=1"}, true},
		{"statement", nil, true},
		{"session", nil, false},
		{"session", []string{"default_pool_size=1"}, true}, // nothing could be found out
	} {
		t.Run(fmt.Sprint(c.mode, c.settings), func(t *testing.T) {
			t.Parallel()
			via := testserver.PgBouncer(t, pg, testserver.PgBouncerOptions{Mode: c.mode, Settings: c.settings}).Via(url)
			wantPooled(t, pg, via, c.want)
			if c.want {
				refused(t, with(t, via, "strategy", "advisory"), "pooler")
			}
		})
	}
	wantPooled(t, pg, url, false)
}

func wantPooled(t *testing.T, pg *testserver.PostgresServer, url string, want bool) {
	t.Helper()
	s := &database{db: pg.DB(t, url), pgx: true, pooled: true}
	if is, err := s.findPooler(t.Context()); is != want || err != nil {
		t.Errorf("%v, %v, want %v", is, err, want)
	}
}

// While many use a pooler it may give two clients the same connections again and again.
func TestABusyPoolerIsFound(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	via := testserver.PgBouncer(t, pg, testserver.PgBouncerOptions{}).Via(pg.Database(t)) + "&default_query_exec_mode=exec"
	others := pg.DB(t, via)
	ctx, stop := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	defer busy.Wait()
	defer stop()
	for range 6 {
		busy.Go(func() {
			for ctx.Err() == nil {
				others.ExecContext(ctx, "SELECT pg_sleep(0.001)")
			}
		})
	}
	for range 20 {
		wantPooled(t, pg, via, true)
	}
	s := &database{db: pg.DB(t, via), pgx: true, pooled: true}
	bounded, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if deaf, err := s.deaf(bounded); !deaf && err == nil {
		t.Error("a connection that a pooler has given away hears")
	}
}
