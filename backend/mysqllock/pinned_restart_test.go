package mysqllock

import (
	"database/sql"
	"sync"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// bothOnConnections runs a test for each strategy that holds connections.
func bothOnConnections(t *testing.T, test func(t *testing.T, s Strategy)) {
	for _, s := range []Strategy{Session, ForUpdate} {
		t.Run(string(s), func(t *testing.T) {
			t.Parallel()
			test(t, s)
		})
	}
}

// A server that has started again gives its connections the same numbers as before. Those of
// others are not ended in place of the links that went with the old one.
func TestRestartedServerKillsNobodyElse(t *testing.T) {
	t.Parallel()
	srv := testserver.MariaDB(t, testserver.MariaDBOptions{})
	url := srv.Database(t)
	backends := map[*Backend]driver.Request{}
	var lost sync.WaitGroup
	for _, s := range []Strategy{Session, ForUpdate} {
		b, r := connect(t, url+"?create=true&strategy="+string(s)), request("x", long)
		lost.Add(1)
		r.OnLost = lost.Done
		take(t, b, r)
		backends[b] = r
	}
	srv.Kill()
	lost.Wait()
	srv.Start()
	db := srv.DB(t, url)
	var others []*sql.Conn
	for range 60 {
		c, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		others = append(others, c)
	}
	for b, r := range backends {
		wantIs(t, b.Release(t.Context(), r.Hold), driver.ErrLost)
	}
	for i, c := range others {
		if _, err := c.ExecContext(t.Context(), "DO 1"); err != nil {
			t.Errorf("somebody else's connection %d: %v", i, err)
		}
	}
}
