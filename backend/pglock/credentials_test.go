package pglock

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// rotation is a user whose password changes.
type rotation struct {
	pg        *testserver.PostgresServer
	user, url string // without the password
}

func newRotation(t *testing.T, params []string) rotation {
	t.Helper()
	pg := testserver.SharedPostgres(t)
	admin := with(t, pg.Database(t), append([]string{"create", "true"}, params...)...)
	table := open(t, admin).database.opts.Table
	u := must.Get(url.Parse(pg.User(t, admin, "one", "SELECT, INSERT, UPDATE ON "+table)))(t)
	u.User = url.User(u.User.Username())
	return rotation{pg, u.User.Username(), u.String()}
}

// change changes the password at the server, and ends all sessions.
func (r *rotation) change(t *testing.T, password string) {
	t.Helper()
	r.pg.Exec(t, "ALTER ROLE "+r.user+" PASSWORD '"+password+"'")
	r.cut(t)
}

func (r *rotation) cut(t *testing.T) {
	t.Helper()
	r.pg.Exec(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '"+r.user+"'")
}

// refused waits until a login was refused n times.
func (r *rotation) refused(t *testing.T, n int) {
	t.Helper()
	eventually(t, "the login is refused", func() bool {
		return r.pg.CountLogged(" "+r.user+"@.*password authentication failed") >= n
	})
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	must.OK(t, os.WriteFile(path, []byte(text), 0o600))
}

// A password is rotated at the server, and a moment later in the file. A holder keeps its lock, and a waiter, a leader and a
// candidate go on.
func TestPasswordIsRotated(t *testing.T) {
	t.Parallel()
	for kind, params := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := newRotation(t, params)
			file := filepath.Join(t.TempDir(), "password")
			writeFile(t, file, "one\n")
			outlive(t, with(t, r.url, "password_file", file), kind == "row", func() {
				r.change(t, "two")
				r.refused(t, 3)
				writeFile(t, file, "two\n")
			})
		})
	}
}

// outlive changes something under programs.
func outlive(t *testing.T, url string, keeps bool, change func()) {
	t.Helper()
	locktest.Outlive(t, keeps, func() driver.Backend { return must.Get(Open(t.Context(), url))(t) }, func(*locktest.Programs) { change() })
}

// A password is asked for at each login, and may be missing for a while.
func TestPasswordOfAFunction(t *testing.T) {
	t.Parallel()
	r := newRotation(t, nil)
	var mu sync.Mutex
	password, asked := "one", 0
	b, err := OpenWith(t.Context(), r.url, &OpenOptions{Credentials: func(context.Context) (string, string, error) {
		mu.Lock()
		defer mu.Unlock()
		if asked++; password == "" {
			return "", "", errors.New("the vault is sealed")
		}
		return "", password, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	set := func(p string) {
		mu.Lock()
		defer mu.Unlock()
		password = p
	}
	mine := request("lock")
	take(t, b, mine)
	set("")
	r.change(t, "two")
	eventually(t, "the vault's error is seen", func() bool {
		errs := b.Renew(t.Context(), []driver.Hold{mine.Hold})
		if errs[0] == nil || driver.Final(errs[0]) || errors.Is(errs[0], driver.ErrLost) {
			t.Fatalf("%v; want an unknown outcome", errs[0])
		}
		return strings.Contains(errs[0].Error(), "the vault is sealed")
	})
	set("two")
	release(t, b, mine)
	none := func(context.Context) (string, string, error) { return "", "", nil }
	_, err = OpenWith(t.Context(), strings.Replace(r.url, r.user+"@", r.user+":s3cret@", 1), &OpenOptions{none})
	wantRefusal(t, err, "want one of them")
}
