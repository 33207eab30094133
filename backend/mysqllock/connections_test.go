package mysqllock

import (
	"errors"
	"fmt"
	"net/url"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestFreeConnections(t *testing.T) {
	t.Parallel()
	srv := testserver.MariaDB(t, testserver.MariaDBOptions{Args: []string{"--max-connections=30"}})
	user := srv.User(t, srv.Database(t), "pw", "ALL ON *.*")
	b := openOne(t, user+"?create=true")
	for _, want := range []int{28, 27} { // beside the administrator's and the backend's own
		admin, err := srv.DB(t, srv.URL()).Conn(t.Context())
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
	srv.Exec(t, fmt.Sprintf("GRANT USAGE ON *.* TO %s@'%%' WITH MAX_USER_CONNECTIONS 7", u.User.Username()))
	limited := openOne(t, user)
	wantFree(t, limited, 5)
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

func openOne(t *testing.T, url string) *Backend {
	t.Helper()
	b, err := Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func TestMaxConnections(t *testing.T) {
	t.Parallel()
	url := testserver.SharedMariaDB(t).Database(t) + "?create=true&max_connections="
	if n := openOne(t, url+"5").database.db.Stats().MaxOpenConnections; n != 5 {
		t.Errorf("the pool's limit is %d, want 5", n)
	}
	for _, wrong := range []string{"0", "-1", "many"} {
		if _, err := Open(t.Context(), url+wrong); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("max_connections=%s: %v, want ErrInvalid", wrong, err)
		}
	}
}
