package sqlitelock

import (
	"database/sql"
	"os"
	"strings"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
)

// -wal grows while another program reads in one long transaction. Afterwards it shrinks.
func TestWALShrinks(t *testing.T) {
	path := lockFile(t)
	b := connect(t, path)
	size := func() int64 { return must.Get(os.Stat(path + "-wal"))(t).Size() }
	pair := func(note string) {
		r := request("x", driver.Exclusive, long)
		r.Meta = map[string]string{"note": note}
		take(t, b, r)
		free(t, b, r)
	}
	pair("")

	reader := must.Get(sql.Open("sqlite", "file:"+path))(t)
	defer reader.Close()
	tx := must.Get(reader.Begin())(t)
	must.OK(t, tx.QueryRow("SELECT count(*) FROM locks").Scan(new(int)))
	for size() < 3*maxWAL {
		pair(strings.Repeat("x", 400<<10))
	}
	must.OK(t, tx.Rollback())
	for range checkpointEvery {
		pair("")
	}
	if n := size(); n > maxWAL {
		t.Errorf("-wal has %d bytes after the reader has gone, want at most %d", n, maxWAL)
	}
}
