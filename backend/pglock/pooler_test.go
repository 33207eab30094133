package pglock

import (
	"fmt"
	"testing"

	"github.com/distlock/distlock/internal/testserver"
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
	s := &site{db: pg.DB(t, url), pgx: true, pooled: true}
	if is, err := s.findPooler(t.Context()); is != want || err != nil {
		t.Errorf("%v, %v, want %v", is, err, want)
	}
}
