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
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
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
	u, err := url.Parse(pg.User(t, admin, "one", "SELECT, INSERT, UPDATE ON "+table))
	if err != nil {
		t.Fatal(err)
	}
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
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A password is rotated at the server, and a moment later in the file. A holder keeps its lock, and a waiter, a leader and a
// candidate go on.
func TestPasswordIsRotated(t *testing.T) {
	t.Parallel()
	for kind, params := range map[string][]string{"row": nil, "session": levels["session"], "transaction": levels["transaction"]} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := newRotation(t, params)
			file := filepath.Join(t.TempDir(), "password")
			writeFile(t, file, "one\n")
			c := newCrew(t, with(t, r.url, "password_file", file))
			r.change(t, "two")
			r.refused(t, 3)
			writeFile(t, file, "two\n")
			c.goesOn(t, kind == "row")
		})
	}
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
	_, err = OpenWith(t.Context(), strings.Replace(r.url, r.user+"@", r.user+":pw@", 1), &OpenOptions{none})
	wantRefusal(t, err, "want one of them")
}

// crew is a holder and a waiter, and two candidates of whom one leads.
type crew struct {
	lease  *distlock.Lease
	waited chan error
	terms  chan context.Context
	resign chan bool
}

func newCrew(t *testing.T, url string) *crew {
	t.Helper()
	c := &crew{waited: make(chan error, 1), terms: make(chan context.Context, 1000), resign: make(chan bool)}
	ttl := distlock.WithTTL(30 * time.Second) // a busy machine needs some for what a test does
	a, b := client(t, url), client(t, url)
	var err error
	if c.lease, err = a.Mutex("lock", ttl).Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	go func() {
		l, err := b.Mutex("lock", ttl).Lock(context.Background())
		if err == nil {
			l.Unlock(context.Background())
		}
		c.waited <- err
	}()
	ctx, cancel := context.WithCancel(context.Background())
	var candidates sync.WaitGroup
	for _, one := range []*distlock.Client{a, b} {
		candidates.Add(1)
		go func() {
			defer candidates.Done()
			if err := one.Election("leader", ttl).Lead(ctx, c.lead); ctx.Err() == nil {
				t.Errorf("a candidate has ended: %v", err)
			}
		}()
	}
	t.Cleanup(func() {
		cancel()
		candidates.Wait()
	})
	eventually(t, "one leads", func() bool { return len(c.terms) == 1 })
	return c
}

func (c *crew) lead(term context.Context) error {
	c.terms <- term
	select {
	case <-term.Done():
	case <-c.resign:
	}
	return nil
}

// goesOn checks that nothing has ended that need not. keeps says that locks outlive their connections.
func (c *crew) goesOn(t *testing.T, keeps bool) {
	t.Helper()
	term := <-c.terms
	if keeps {
		until := c.lease.Deadline()
		eventually(t, "the lock is renewed", func() bool { return c.lease.Deadline().After(until) })
		if c.lease.Err() != nil || term.Err() != nil {
			t.Errorf("lost: %v, %v", c.lease.Err(), context.Cause(term))
		}
		c.resign <- true
	}
	if err := c.lease.Unlock(context.Background()); (err != nil) && keeps {
		t.Errorf("unlock: %v", err)
	}
	within(t, "the waiter, and the next term", func(context.Context) {
		if err := <-c.waited; err != nil {
			t.Errorf("the waiter: %v", err)
		}
		<-c.terms
	})
}
