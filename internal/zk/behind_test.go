package zk

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// breaking returns a fake that closes a connection instead of answering a delete, and reports sessions that are closed.
func breaking(behind func(zxid int64) bool) (f *fake, closed chan int) {
	closed = make(chan int, 10)
	return &fake{behind: behind, answer: func(n int, _ int32, o opcode) message {
		switch o {
		case opDelete:
			return message{raw: []byte("the connection ends with this")}
		case opCloseSession:
			closed <- n
		}
		return good(o)
	}}, closed
}

// A follower that lags behind closes the connection of a session that has seen more. The session lives: it is never used
// there, and never lost, whether the follower catches up or another server answers.
func TestServerThatLagsBehind(t *testing.T) {
	t.Parallel()
	for name, unknown := range map[string]bool{"a follower": false, "a leader that was replaced": true} {
		t.Run(name, func(t *testing.T) { serverLagsBehind(t, unknown) })
	}
}

// serverLagsBehind is about a server that knows the session, or does not.
func serverLagsBehind(t *testing.T, unknown bool) {
	var lags atomic.Bool
	var asked atomic.Int32
	f, _ := breaking(func(zxid int64) bool {
		if lags.Load() && zxid == 0 {
			asked.Add(1)
		}
		return lags.Load() && zxid > 0
	})
	c := at(t, startFake(t, f))
	must.OK(t, expect.Err2(c.Get(soon(t), "/a")))
	f.empty.Store(unknown)
	lags.Store(true)
	before := f.conns.Load()
	expect.Be(t, c.Delete(soon(t), "/a", -1), ErrConnectionLoss, "delete")
	eventually(t, "the server is asked whether it knows the session", func() bool { return asked.Load() > 3 })
	if c.Err() != nil {
		t.Fatalf("the session was lost to a server that lags behind: %v", c.Err())
	}
	f.empty.Store(false)
	lags.Store(false)
	if _, _, err := c.Get(soon(t), "/a"); err != nil || f.conns.Load() == before {
		t.Errorf("once it has caught up: %v", err)
	}
}

// Servers that know the session, but less than it has seen for its whole timeout, have an older copy of their data.
func TestServersWithAnOlderCopy(t *testing.T) {
	t.Parallel()
	var older atomic.Bool
	f, closed := breaking(func(zxid int64) bool { return older.Load() && zxid > 0 })
	f.timeout = time.Second
	c := at(t, startFake(t, f))
	older.Store(true)
	began := time.Now()
	c.Delete(soon(t), "/a", -1)
	receive(t, "the session is over", c.Done())
	if err := c.Err(); !errors.Is(err, ErrSessionExpired) || !strings.Contains(err.Error(), "older copy") || time.Since(began) < c.Timeout() {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
	receive(t, "the servers are told", closed)
}

func TestServersThatLostTheirData(t *testing.T) {
	t.Parallel()
	srv := testserver.ZooKeeper(t, testserver.ZooKeeperOptions{})
	c := dial(t, Config{Servers: []string{srv.Addr()}, Timeout: 5 * time.Second})
	node(t, c, "/a")
	began := time.Now()
	srv.LoseData()
	receive(t, "the session is over", c.Done())
	if err := c.Err(); !errors.Is(err, ErrSessionExpired) || !strings.Contains(err.Error(), "lost its data") || time.Since(began) < c.Timeout() {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
	expect.Be(t, at(t, srv.Addr()).Delete(soon(t), "/a", -1), ErrNoNode, "a new session")
}
