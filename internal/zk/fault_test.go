package zk

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// behind opens a session with the shared server through a proxy.
func behind(t *testing.T, timeout time.Duration) (*Conn, *faultproxy.Proxy) {
	t.Helper()
	p := faultproxy.New(t, testserver.SharedZooKeeper(t).Addr())
	return dial(t, Config{Servers: []string{p.Addr()}, Timeout: timeout}), p
}

func TestLostAnswerLeavesTheOutcomeOpen(t *testing.T) {
	t.Parallel()
	c, p := behind(t, long)
	dir := place(t, c)
	p.LoseReply(dir + "/a")
	if _, _, err := c.Create(soon(t), dir+"/a", nil, Ephemeral); !errors.Is(err, ErrConnectionLoss) || errors.Is(err, ErrNotSent) {
		t.Errorf("create: %v", err)
	}
	// The session goes on, and the node exists.
	if _, stat, err := c.Get(soon(t), dir+"/a"); err != nil || stat.EphemeralOwner != c.Session() {
		t.Errorf("the created node: %+v, %v", stat, err)
	}
	p.LoseReply(dir + "/a")
	expect.Be(t, c.Delete(soon(t), dir+"/a", -1), ErrConnectionLoss, "delete")
	expect.Be(t, expect.Err2(c.Get(soon(t), dir+"/a")), ErrNoNode, "the deleted node")
}

func TestLostRequestLeavesTheOutcomeOpen(t *testing.T) {
	t.Parallel()
	c, p := behind(t, long)
	dir := place(t, c)
	p.LoseRequest(dir + "/a")
	expect.Be(t, expect.Err2(c.Create(soon(t), dir+"/a", nil, Ephemeral)), ErrConnectionLoss, "create")
	expect.Be(t, expect.Err2(c.Get(soon(t), dir+"/a")), ErrNoNode, "a node that was never made")
}

func TestReadsAreRepeated(t *testing.T) {
	t.Parallel()
	c, p := behind(t, long)
	dir := place(t, c)
	node(t, c, dir+"/a")
	p.LoseReply(dir)
	if names, _, err := c.Children(soon(t), dir); err != nil || !slices.Equal(names, []string{"a"}) {
		t.Errorf("children: %q, %v", names, err)
	}
	p.LoseRequest(dir + "/a")
	expect.OK(t, expect.Err2(c.Get(soon(t), dir+"/a")), "get")
	expect.Equal(t, p.Lost(), 2, "were lost")
	// Not forever: a read that breaks each connection fails.
	p.Storm(1, 1, dir+"/a")
	expect.Be(t, expect.Err2(c.Get(soon(t), dir+"/a")), ErrConnectionLoss, "get that always fails")
}

// The listing may be lost while the node exists.
func TestListLostAfterCreate(t *testing.T) {
	t.Parallel()
	c, p := behind(t, long)
	dir := place(t, c)
	p.LoseReply(dir + "/n-")
	e, err := c.CreateAndList(soon(t), dir+"/n-", nil)
	if !errors.Is(err, ErrConnectionLoss) || e.Path != "" {
		t.Errorf("both lost: %+v, %v", e, err)
	}
	if names, _, err := c.Children(soon(t), dir); err != nil || len(names) != 1 {
		t.Errorf("the created node: %q, %v", names, err)
	}
}

func TestContextEndsACallInEachPhase(t *testing.T) {
	t.Parallel()
	c, p := behind(t, long)
	dir := place(t, c)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Delete(ended, dir, -1); !errors.Is(err, context.Canceled) || !errors.Is(err, ErrNotSent) {
		t.Errorf("before it is sent: %v", err)
	}
	p.Silence()
	err := error(ErrNotSent)
	for patient := 20 * time.Millisecond; errors.Is(err, ErrNotSent) && patient < patience; patient *= 4 {
		quick, cancel := context.WithTimeout(t.Context(), patient)
		_, _, err = c.Create(quick, dir+"/a", nil, Ephemeral)
		cancel()
	}
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrNotSent) {
		t.Errorf("on the way: %v", err)
	}
	e, err := c.CreateAndList(ended, dir+"/n", nil)
	if !errors.Is(err, ErrNotSent) || e.Path != "" {
		t.Errorf("create and list: %+v, %v", e, err)
	}
	p.Pass()
	expect.OK(t, expect.Err2(c.Get(soon(t), dir)), "afterwards")
}

func TestCallsWaitForTheNetwork(t *testing.T) {
	t.Parallel()
	srv := testserver.ZooKeeper(t, testserver.ZooKeeperOptions{})
	c := dial(t, Config{Servers: []string{srv.Addr()}, Timeout: long})
	dir := place(t, c)
	srv.Kill()
	eventually(t, "the connection breaks", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, _, err := c.Create(ctx, dir+"/x", nil, Ephemeral)
		return errors.Is(err, ErrNotSent) // the old request is gone
	})
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if e, err := c.CreateAndList(soon(t), dir+"/n-", nil); err != nil || e.Stat.EphemeralOwner != c.Session() {
				t.Errorf("%+v, %v", e, err)
			}
		})
	}
	srv.Start()
	wg.Wait()
}

func TestSilentServerIsLeft(t *testing.T) {
	t.Parallel()
	for timeout := 3 * time.Second; ; timeout *= 3 {
		err := silentServerIsLeft(t, timeout)
		if err == nil {
			break
		}
		if !errors.Is(err, ErrSessionExpired) || timeout > time.Minute {
			t.Fatal(err)
		}
		t.Logf("a session of %v is too short for this machine", timeout)
	}
}

// silentServerIsLeft returns the error that ends a session with two servers, one of them silent.
func silentServerIsLeft(t *testing.T, timeout time.Duration) error {
	t.Helper()
	srv := testserver.SharedZooKeeper(t)
	p := faultproxy.New(t, srv.Addr())
	c := dial(t, Config{Servers: []string{p.Addr(), srv.Addr()}, Timeout: timeout})
	dir := place(t, c)
	node(t, c, dir+"/e")
	p.Silence()
	// The session resumes at the server that answers.
	moved := moves(c)
	eventually(t, "the deadline moves on", func() bool { return moved() || c.Err() != nil })
	_, stat, err := c.Get(soon(t), dir+"/e")
	if err == nil && stat.EphemeralOwner != c.Session() {
		t.Errorf("the session's node: %+v", stat)
	}
	return err
}

func TestExpiryIsAFactOnlyWhenTheServerSaysSo(t *testing.T) {
	t.Parallel()
	c, p := behind(t, 9*time.Second)
	observer := shared(t)
	path := place(t, observer) + "/e"
	node(t, c, path)
	gone, events := make(chan time.Time, 1), make(chan Event, 2)
	if _, _, _, err := observer.GetW(soon(t), path, func(Event) { gone <- time.Now() }); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := c.GetW(soon(t), path, func(e Event) { events <- e }); err != nil {
		t.Fatal(err)
	}
	p.Silence()
	if at := receive(t, "the session ends", gone); !at.After(c.Deadline()) {
		t.Errorf("the node was gone %v before the deadline", c.Deadline().Sub(at))
	}
	select {
	case <-c.Done():
		t.Errorf("a session that is cut off can't know: %v", c.Err())
	default:
	}
	p.Pass()
	receive(t, "the session is over", c.Done())
	expect.Be(t, c.Err(), ErrSessionExpired, "the session is over")
	if e := receive(t, "the watch ends", events); e != EventSession || !errors.Is(c.Err(), ErrSessionExpired) {
		t.Errorf("the watch received %+v", e)
	}
	expect.Be(t, c.Delete(soon(t), path, -1), ErrSessionExpired, "a call")
}

func TestCloseWithoutANetwork(t *testing.T) {
	t.Parallel()
	c, p := behind(t, 9*time.Second)
	p.Silence()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	expect.Be(t, c.Close(ctx), context.DeadlineExceeded, "close")
	receive(t, "done", c.Done())
	expect.Be(t, c.Err(), ErrClosed, "the session is over")
}

// A close whose answer is lost is sent again.
func TestCloseIsRepeated(t *testing.T) {
	t.Parallel()
	c, p := behind(t, long)
	observer := shared(t)
	path := place(t, observer) + "/e"
	node(t, c, path)
	p.LoseRequest("\xff\xff\xff\xf5") // closeSession
	if err := c.Close(soon(t)); err != nil || p.Lost() != 1 {
		t.Errorf("close: %v, %d lost", err, p.Lost())
	}
	expect.Be(t, expect.Err2(observer.Get(soon(t), path)), ErrNoNode, "the session's node")
}

func TestDialTriesEachServer(t *testing.T) {
	t.Parallel()
	live := testserver.SharedZooKeeper(t).Addr()
	silent := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer silent.Close()
	for range 3 { // in random order
		var c *Conn
		err := context.DeadlineExceeded
		for patient := 9 * time.Second; errors.Is(err, context.DeadlineExceeded) && patient < 2*patience; patient *= 4 {
			ctx, cancel := context.WithTimeout(t.Context(), patient)
			c, err = Dial(ctx, Config{Servers: []string{"127.0.0.1:1", live, silent.Addr().String()}, Timeout: long})
			cancel()
		}
		must.OK(t, err)
		c.Close(soon(t))
	}
}

// A server falls silent after it has opened the session. Dial ends with its context all the same, and not
// with the session, which is longer than the test's patience.
func TestDialEndsWithItsContext(t *testing.T) {
	t.Parallel()
	silence := make(chan struct{})
	addr := startFake(t, &fake{timeout: time.Hour, answer: func(int, int32, opcode) message {
		<-silence
		return message{}
	}})
	defer close(silence)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		_, err := Dial(ctx, Config{Servers: []string{addr}})
		failed <- err
	}()
	expect.Be(t, receive(t, "the end of Dial", failed), context.DeadlineExceeded, "dial")
}

// All faults at once, under load: a success that was reported is one, and the session goes on.
func TestStorm(t *testing.T) {
	t.Parallel()
	c, p := behind(t, long)
	dir := place(t, c)
	p.Storm(7, 0.05, dir)
	var wg sync.WaitGroup
	var mu sync.Mutex
	made := map[string]bool{}
	for range 8 {
		wg.Go(func() {
			for range 60 {
				e, err := c.CreateAndList(soon(t), dir+"/n-", nil)
				if err != nil && !errors.Is(err, ErrConnectionLoss) {
					t.Errorf("create: %v", err)
				}
				if e.Path != "" {
					mu.Lock()
					made[e.Path] = true
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	p.Storm(7, 0, "")
	names, _, err := c.Children(soon(t), dir)
	must.OK(t, err)
	for path := range made {
		if !slices.Contains(names, path[len(dir)+1:]) {
			t.Errorf("%s was made and does not exist", path)
		}
	}
	if p.Lost() < 5 || len(made) < 100 {
		t.Errorf("%d lost, %d made: too few to show anything", p.Lost(), len(made))
	}
	t.Logf("%d lost, %d reported of %d made", p.Lost(), len(made), len(names))
}

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
			expect.Be(t, holder.Err(), ErrSessionExpired, "the session is over")
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
			err = observer.Commit(soon(t)) // its server may lag
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
	expect.Equal(t, receive(t, "the change", events), EventDataChanged, "event")
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
