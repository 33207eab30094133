package pglock

import (
	"errors"
	"fmt"
	"net/url"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// Three connections are the administrators'.
func TestFreeConnections(t *testing.T) {
	t.Parallel()
	pg := testserver.Postgres(t, testserver.PostgresOptions{Settings: []string{"max_connections=30"}})
	database := pg.Database(t)
	user := pg.User(t, database, "pw", "CREATE, USAGE ON SCHEMA public")
	b := open(t, with(t, user, "create", "true"))
	for _, want := range []int{25, 24} { // beside the administrator's and the backend's own
		admin, err := pg.DB(t, pg.URL()).Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer admin.Close()
		wantFree(t, b, want)
	}
	u, err := url.Parse(user)
	if err != nil {
		t.Fatal(err)
	}
	pg.Exec(t, fmt.Sprintf("ALTER ROLE %s CONNECTION LIMIT 7", u.User.Username()))
	wantFree(t, b, 6)
	u, err = url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	pg.Exec(t, fmt.Sprintf("ALTER DATABASE %s CONNECTION LIMIT 4", u.Path[1:]))
	wantFree(t, b, 3)
}

func wantFree(t *testing.T, b *Backend, want int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d connections are free", want), func() bool {
		free, err := b.FreeConnections(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return free == want
	})
}

func TestMaxConnections(t *testing.T) {
	t.Parallel()
	url := with(t, testserver.SharedPostgres(t).Database(t), "create", "true")
	if n := open(t, with(t, url, "max_connections", "5")).database.db.Stats().MaxOpenConnections; n != 5 {
		t.Errorf("the pool's limit is %d, want 5", n)
	}
	for _, wrong := range []string{"0", "-1", "many"} {
		if _, err := Open(t.Context(), with(t, url, "max_connections", wrong)); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("max_connections=%s: %v, want ErrInvalid", wrong, err)
		}
	}
}
