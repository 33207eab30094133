package zk

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestLongEnsemble(t *testing.T) {
	t.Parallel()
	g := testserver.ZooKeeperCluster(t, testserver.ZooKeeperOptions{})
	t.Run("the deadline passes first", func(t *testing.T) { deadlinePassesFirst(t, g) })
	t.Run("a session moves to another server", func(t *testing.T) { sessionMoves(t, g) })
}

// For a while the servers of an ensemble may disagree on the leader. In each case the deadline
// passes before they end the session.
func deadlinePassesFirst(t *testing.T, g *testserver.ZooKeeperGroup) {
	observer := dial(t, Config{Servers: g.Addrs(), Timeout: 30 * time.Second})
	for name, member := range map[string]func() *testserver.ZooKeeperServer{
		"follower cut off": func() *testserver.ZooKeeperServer { return g.Followers()[0] },
		"leader cut off":   g.Leader,
	} {
		t.Run(name, func(t *testing.T) {
			g.AwaitReady()
			s := member()
			holder, gone := held(t, observer, s.Addr())
			g.Isolate(s)
			last := lastAnswer(holder)
			at := receive(t, "the session ends", gone)
			deadline := holder.Deadline()
			t.Logf("the node went %v after the deadline; the server answered last %v before it went", at.Sub(deadline), at.Sub(last()))
			if !at.After(deadline) {
				t.Errorf("the node was gone %v before the deadline", deadline.Sub(at))
			}
			g.Heal()
			receive(t, "the holder is notified", holder.Done())
			if err := holder.Err(); !errors.Is(err, ErrSessionExpired) {
				t.Errorf("the session is over: %v", err)
			}
		})
	}
}

// held returns a short session with a server, after its deadline has advanced, and a channel that
// receives the time at which its node ended. On a busy machine a session may end before that.
func held(t *testing.T, observer *Conn, addr string) (*Conn, chan time.Time) {
	t.Helper()
	path := place(t, observer) + "/held"
	for range 10 {
		holder := dial(t, Config{Servers: []string{addr}, Timeout: 2 * time.Second})
		_, _, err := holder.Create(soon(t), path, nil, Ephemeral)
		if err == nil {
			err = observer.Sync(soon(t), path) // its server may lag
		}
		gone := make(chan time.Time, 1)
		if err == nil {
			_, _, _, err = observer.GetW(soon(t), path, func(Event) { gone <- time.Now() })
		}
		moved := moves(holder)
		for err == nil && len(gone) == 0 {
			if moved() {
				return holder, gone
			}
			time.Sleep(2 * time.Millisecond)
		}
		t.Logf("once more: %v", err)
		holder.Close(soon(t))
	}
	t.Fatal("no session lasted")
	return nil, nil
}

// A session survives the server that it is connected to, with its nodes and watches.
func sessionMoves(t *testing.T, g *testserver.ZooKeeperGroup) {
	c, other := at(t, g.Addrs()...), at(t, g.Addrs()...)
	dir := place(t, other)
	node(t, c, dir+"/e")
	_, events := watchData(t, c, dir)
	for _, s := range g.Members() {
		s.Kill()
		eventually(t, "the session's node is read", func() bool {
			_, stat, err := c.Get(soon(t), dir+"/e")
			return err == nil && stat.EphemeralOwner == c.Session()
		})
		s.Start()
		g.AwaitReady()
	}
	if _, err := other.Set(soon(t), dir, nil, -1); err != nil && !errors.Is(err, ErrConnectionLoss) {
		t.Fatal(err)
	}
	if e := receive(t, "the change", events); e != EventDataChanged {
		t.Errorf("event %+v", e)
	}
}

// moves returns a function that reports whether a session's deadline has advanced.
func moves(c *Conn) func() bool {
	first := c.Deadline()
	return func() bool { return c.Deadline().After(first) }
}

// lastAnswer reads until that fails. The result returns the time of the last success.
func lastAnswer(c *Conn) func() time.Time {
	ctx, cancel := context.WithCancel(context.Background())
	last := make(chan time.Time, 1)
	go func() {
		at := time.Now()
		for ctx.Err() == nil {
			began := time.Now()
			if _, _, err := c.Get(ctx, "/"); err == nil {
				at = began
			}
			time.Sleep(5 * time.Millisecond)
		}
		last <- at
	}()
	return func() time.Time { cancel(); return <-last }
}
