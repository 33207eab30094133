// Package sqltest tests database locks under faults (of connections, processes, the server, the
// network) and under load, in the same way for every strategy of mysqllock and pglock. It checks which
// client holds the lock when, with which fence, and how many connections that takes.
package sqltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"runtime/pprof"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

const (
	// life is the TTL of holds that a fault affects.
	life = 4 * time.Second
	// patience is how long a busy machine may take for steps that normally take ms, or a few TTLs.
	patience = 2 * time.Minute
	// lockName is the contended lock.
	lockName = "stock"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(childEnv); url != "" {
		holdUntilKilled(url)
	}
	os.Exit(testserver.Run(m))
}

// ends fails the test if f does not return.
func ends(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(3 * patience):
		var all bytes.Buffer
		pprof.Lookup("goroutine").WriteTo(&all, 1)
		t.Fatalf("%s does not return\n%s", what, all.Bytes())
	}
}

// scene is a database with the tables of a strategy in it.
type scene struct {
	strategy
	t        *testing.T
	srv      *server
	database string
	life     time.Duration // the TTL
	call     time.Duration // the CallTimeout; 0: the usual
}

// calm makes the scene one without faults, in which a busy machine loses no lock and no call.
func (s *scene) calm() { s.life, s.call = 3*patience, patience/2 }

func newScene(t *testing.T, s strategy, srv *server) *scene {
	t.Helper()
	c := &scene{strategy: s, t: t, srv: srv, database: srv.database(t), life: life}
	b := must.Get(driver.Open(t.Context(), c.url(c.database)+"&create=true"))(t)
	must.OK(t, b.Close())
	return c
}

// user returns the database's URL for a new user.
func (s *scene) user() string {
	s.t.Helper()
	return s.srv.user(s.t, s.database)
}

// killConnections ends all connections of a user at the server.
func (s *scene) killConnections(userURL string) {
	s.t.Helper()
	s.srv.Exec(s.t, fmt.Sprintf(s.kind.kill, nameOf(userURL)))
}

// countConnections counts the connections of a user.
func (s *scene) countConnections(userURL string) int {
	s.t.Helper()
	return s.count(fmt.Sprintf(s.kind.connections, nameOf(userURL)))
}

// countDeadlocks returns how many deadlocks the server has had since its start.
func (s *scene) countDeadlocks() int {
	s.t.Helper()
	return s.count(s.kind.deadlocks)
}

// awaitBlocked waits until a user's statement is waiting for a lock at the server.
func (s *scene) awaitBlocked(userURL string) {
	s.t.Helper()
	s.awaitSome(s.kind.blocked, userURL)
}

// awaitStuck waits until a statement has been waiting for so long that it must be waiting for a lock.
func (s *scene) awaitStuck(userURL string) {
	s.t.Helper()
	s.awaitSome(s.kind.stuck, userURL)
}

func (s *scene) awaitSome(query, userURL string) {
	s.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if s.count(fmt.Sprintf(query, nameOf(userURL))) > 0 {
			return
		}
	}
	s.t.Fatal("no statement waits at the server")
}

func (s *scene) count(query string) (n int) {
	s.t.Helper()
	must.Get(fmt.Sscan(s.srv.Ask(s.t, query), &n))(s.t)
	return n
}

// url adds the strategy's parameters to a database's URL.
func (s *scene) url(database string) string {
	if strings.Contains(database, "?") {
		return database + "&" + s.query
	}
	return database + "?" + s.query
}

// through replaces the address in a URL.
func through(addr, rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		panic(err)
	}
	u.Host = addr
	return u.String()
}

// party is a client with a backend of its own.
type party struct {
	*distlock.Client
	waits chan struct{} // closed when it starts to wait
}

// party opens a backend as a user, closed with the test.
func (s *scene) party(userURL string) *party {
	s.t.Helper()
	p := must.Get(s.open(s.t.Context(), userURL))(s.t)
	s.t.Cleanup(p.close(s.t))
	return p
}

func (s *scene) open(ctx context.Context, userURL string) (*party, error) {
	p := &party{waits: make(chan struct{})}
	var once atomic.Bool
	client, err := distlock.Open(ctx, s.url(userURL), &distlock.Options{TTL: s.life, CallTimeout: s.call, Observer: &distlock.Observer{
		Waiting: func(distlock.Event) {
			if !once.Swap(true) {
				close(p.waits)
			}
		},
	}})
	p.Client = client
	return p, err
}

// close closes the client, and fails the test if that takes too long: the server may be down or silent.
func (p *party) close(t *testing.T) func() {
	return func() { ends(t, "Close", func() { p.Close() }) }
}

// take takes the lock, which must be free.
func (p *party) take(t *testing.T) *distlock.Lease {
	t.Helper()
	for {
		l, err := p.Mutex(lockName).TryLock(t.Context())
		if err == nil {
			return l
		}
		// A busy machine may need longer than a TTL for the first connection.
		must.Be(t, err, context.DeadlineExceeded)
	}
}

// unlock unlocks a lock. On a busy machine there may be no answer in time: then the release goes on in the background.
func unlock(t *testing.T, l *distlock.Lease) {
	t.Helper()
	if err := l.Unlock(t.Context()); !errors.Is(err, distlock.ErrUnavailable) {
		expect.OK(t, err, "unlock")
	}
}

// grant is the result of a wait.
type grant struct {
	lease *distlock.Lease
	err   error
	at    time.Time
	shown bool // the previous holder still believed that it held
}

// follow starts to wait for the lock that holder has.
func (p *party) follow(t *testing.T, holder *distlock.Lease) <-chan grant {
	t.Helper()
	granted := make(chan grant, 1)
	go func() {
		lease, err := p.Mutex(lockName).Lock(t.Context())
		g := grant{lease: lease, err: err, at: time.Now()}
		g.shown = holder != nil && holder.Err() == nil
		granted <- g
	}()
	select {
	case <-p.waits:
	case <-time.After(patience):
		t.Fatal("the next client does not start to wait")
	}
	return granted
}

// awaitGrant returns the grant that ends a wait started by follow.
func awaitGrant(t *testing.T, granted <-chan grant) grant {
	t.Helper()
	select {
	case g := <-granted:
		if g.err != nil {
			t.Fatalf("the next client does not get the lock: %v", g.err)
		}
		return g
	case <-time.After(patience):
		t.Fatal("the next client does not get the lock")
		panic("not reached")
	}
}

// watch sends the time at which a lease ends.
func watch(l *distlock.Lease) <-chan time.Time {
	ended := make(chan time.Time, 1)
	context.AfterFunc(l.Context(), func() { ended <- time.Now() })
	return ended
}

// lost returns when a lease was lost, given the channel of watch.
func lost(t *testing.T, l *distlock.Lease, ended <-chan time.Time) time.Time {
	t.Helper()
	select {
	case at := <-ended:
		if cause := context.Cause(l.Context()); !errors.Is(cause, distlock.ErrLost) {
			t.Errorf("the holder's context ended with %v, want ErrLost", cause)
		}
		return at
	case <-time.After(patience):
		t.Fatal("the holder still believes that it holds")
		panic("not reached")
	}
}
