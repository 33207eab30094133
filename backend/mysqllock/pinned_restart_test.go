package mysqllock

import (
	"database/sql"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testserver"
)

// bothPinned runs a test for each strategy that holds connections.
func bothPinned(t *testing.T, test func(t *testing.T, s Strategy)) {
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
	bothPinned(t, func(t *testing.T, s Strategy) {
		srv := testserver.MariaDB(t, testserver.MariaDBOptions{})
		url := srv.Database(t)
		b := connect(t, url+"?create=true&strategy="+string(s))
		lost := make(chan struct{})
		r := request("x", long)
		r.OnLost = func() { close(lost) }
		take(t, b, r)
		srv.Kill()
		<-lost
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
		wantIs(t, b.Release(t.Context(), r.Hold), driver.ErrLost)
		for i, c := range others {
			if _, err := c.ExecContext(t.Context(), "DO 1"); err != nil {
				t.Errorf("somebody else's connection %d: %v", i, err)
			}
		}
	})
}
