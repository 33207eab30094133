package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/engine"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/must"
)

// handOver passes a lock back and forth between two backends, one of which always waits while the other
// holds. It measures the time from each release to the next grant.
func handOver(t testing.TB, a, b driver.Backend, name string, times int, held time.Duration) []time.Duration {
	t.Helper()
	took := make([]time.Duration, 0, times)
	holder, waiter := a, b
	r := asks(name, driver.Exclusive)
	take(t, holder, r)
	for range times {
		next := asks(r.Name, r.Mode)
		next.Queue = true
		refused(t, waiter, next)
		w := must.Get(waiter.(driver.Watcher).Watch(t.Context(), next))(t)
		refused(t, waiter, next)
		time.Sleep(held)
		drain(w)
		start := time.Now()
		release(t, holder, r)
		for {
			select {
			case <-w.Ready:
			case <-time.After(patient):
				t.Fatal("the release was not signalled")
			}
			if _, err := waiter.Acquire(t.Context(), next); err == nil {
				break
			}
		}
		took = append(took, time.Since(start))
		w.Close()
		holder, waiter, r = waiter, holder, next
	}
	release(t, holder, r)
	slices.Sort(took)
	return took
}

func drain(w driver.Watch) {
	select {
	case <-w.Ready:
	default:
	}
}

// A release notifies only if there are waiters.
func TestReleaseNotifiesWaiters(t *testing.T) {
	t.Parallel()
	u, _ := freshDatabase(t, Row)
	a, b := rowAt(t, u), rowAt(t, u)
	name := "hand-over"
	sent := func() (total int64) {
		for _, backend := range []*Backend{a, b} {
			_, number, _ := splitAddress(notifierOf(t, backend).address())
			total += number
		}
		return total
	}
	before := sent()
	for range 10 {
		r := asks(name, driver.Exclusive)
		take(t, a, r)
		release(t, a, r)
	}
	if n := sent() - before; n != 0 {
		t.Errorf("%d notifications without a waiter", n)
	}
	took := handOver(t, a, b, name, 20, 20*time.Millisecond)
	t.Logf("from a release to the next grant: p50 %v, longest %v", took[10], took[19])
	if n := sent() - before; n < 10 {
		t.Errorf("20 releases with a waiter sent %d notifications", n)
	}
}

// A lock that is renewed every few minutes keeps the session that its row names.
func TestNotifierOutlivesALongTTL(t *testing.T) {
	t.Parallel()
	u, _ := freshDatabase(t, Row)
	b := rowAt(t, u)
	n := notifierOf(t, b)
	needed := func() time.Duration {
		n.mu.Lock()
		defer n.mu.Unlock()
		return time.Until(n.needed)
	}
	for i, mode := range []driver.Mode{driver.Exclusive, driver.Read, driver.Counted} {
		r := asks(fmt.Sprint("long-", mode), mode)
		r.TTL = time.Duration(10*i+3) * time.Hour
		take(t, b, r)
		if d := needed(); d < r.TTL-time.Hour {
			t.Errorf("%v: after a grant for %v the session ends in %v", mode, r.TTL, d)
		}
		r.TTL += 3 * time.Hour
		renews(t, b, r, nil)
		if d := needed(); d < r.TTL-time.Hour {
			t.Errorf("%v: after a renewal for %v the session ends in %v", mode, r.TTL, d)
		}
	}
	held := asks("held", driver.Exclusive)
	take(t, b, held)
	other := rowAt(t, u)
	n = notifierOf(t, other)
	refused := asks("held", driver.Exclusive)
	refused.TTL = 3 * time.Hour
	must.Be(t, expect.Err(other.Acquire(t.Context(), refused)), driver.ErrHeld)
	if d := needed(); d > time.Hour {
		t.Errorf("a refused attempt keeps the session for %v", d)
	}
}

// A reader whose grant came before its process had an address gets one with the next renewal.
func TestRenewedReaderHasAnAddress(t *testing.T) {
	t.Parallel()
	u, db := freshDatabase(t, Row)
	b := rowAt(t, u)
	r := asks("read", driver.Read)
	take(t, b, r)
	n := b.strategy.(*rowStrategy).store.notifier
	until(t, "the notifier is ready", func() bool { return n.address() != "" })
	address := n.address()
	renews(t, b, r, nil)
	var claims string
	if err := db.QueryRow("SELECT claims FROM distlock_locks WHERE k = ?", keyOf("read")).Scan(&claims); err != nil || !strings.Contains(claims, address) {
		t.Errorf("%s, %v; want the address %s", claims, err, address)
	}
}

// hearing is a waiter that says what happens to it.
type hearing struct {
	follow chan string
	got    chan string
}

func hear(t *testing.T, n *notifier) *hearing {
	t.Helper()
	h := &hearing{make(chan string, 1), make(chan string, 100)}
	w := engine.Waiter{Name: "x", Owner: driver.NewOwner(), Queue: true, Follow: h.follow, Poll: func() { h.got <- "silent" }}
	stop := must.Get(n.Listen(w, func(string) { h.got <- "notified" }))(t)
	t.Cleanup(stop)
	return h
}

// waits follows an address until something happens.
func (h *hearing) waits(address string) <-chan string {
	h.follow <- address
	return h.got
}

// listening waits until a session waits for a user-level lock.
func listening(t *testing.T, db *sql.DB) {
	t.Helper()
	until(t, "a session listens", func() bool { return sessionsIn(t, db, "User lock") > 0 })
}

// sessionsIn returns how many sessions of the database are in a state.
func sessionsIn(t *testing.T, db *sql.DB, state string) int64 {
	t.Helper()
	return ask(t, db, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = ? AND DB = DATABASE()", state)
}

// Each notification is received once, whether the waiter was already waiting or comes later.
func TestNotificationsAreReceived(t *testing.T) {
	t.Parallel()
	u, db := freshDatabase(t, Row)
	notifier, waiter := notifierOf(t, rowAt(t, u)), notifierOf(t, rowAt(t, u))
	h := hear(t, waiter)
	address := notifier.address()
	_, first, _ := splitAddress(address)
	for range 3 {
		got := h.waits(address) // a claim may keep the old address for long
		listening(t, db)
		notifier.Notify()
		if r := <-got; r != "notified" {
			t.Fatalf("after a notification: %s", r)
		}
	}
	until(t, "the last notification is sent", func() bool { return strings.HasSuffix(notifier.address(), fmt.Sprint("/", first+3)) })
	late := hear(t, waiter)
	if r := <-late.waits(address); r != "notified" {
		t.Errorf("after three notifications that were missed: %s", r)
	}
	listening(t, db)
	select {
	case r := <-late.got:
		t.Errorf("a notification is received again: %s", r)
	default:
	}
	notifier.Notify()
	if r := <-late.got; r != "notified" {
		t.Errorf("after another notification: %s", r)
	}
}

// Waiters of one process share a connection, whichever rows they wait for.
func TestListenersShareAConnection(t *testing.T) {
	t.Parallel()
	u, db := freshDatabase(t, Row)
	notifier, waiter := notifierOf(t, rowAt(t, u)), notifierOf(t, rowAt(t, u))
	address := notifier.address()
	var all []*hearing
	for range 20 {
		h := hear(t, waiter)
		all = append(all, h)
		h.waits(address)
	}
	listening(t, db)
	waiter.mu.Lock()
	n := len(waiter.waits)
	waiter.mu.Unlock()
	if n != 1 {
		t.Errorf("%d connections wait for one process", n)
	}
	notifier.Notify()
	for _, h := range all {
		if r := <-h.got; r != "notified" {
			t.Error("a waiter that shares a connection is silent")
		}
	}
}

// A dead notifier has no address, and no waiter follows it.
func TestListenersOfADeadNotifier(t *testing.T) {
	t.Parallel()
	u, db := freshDatabase(t, Row)
	notifier, waiter := notifierOf(t, rowAt(t, u)), notifierOf(t, rowAt(t, u))
	h := hear(t, waiter)
	const id = "0123456789abcdef/"
	for _, address := range []string{"x", "/", id, id + "x", id + "-3", id + "x'", "x'" + id + "2", id + "2\n", id + "9999999999999999", id + "2"} {
		if r := <-h.waits(address); r != "silent" {
			t.Errorf("%q: %s", address, r)
		}
	}
	address := notifier.address()
	got := h.waits(address)
	listening(t, db)
	do(t, db, fmt.Sprint("KILL ", ask(t, db, "SELECT IS_USED_LOCK('distlock/"+address+"')")))
	if r := <-got; r != "notified" {
		t.Errorf("when the notifier's session dies: %s; want it to notify", r)
	}
	until(t, "there is another", func() bool {
		notifier.Notify() // finds the dead session
		next := notifier.address()
		return next != "" && next != address
	})
}

// A wait on a connection that was cut off ends, so that its waiters poll.
func TestWaitsOnSilentConnectionsEnd(t *testing.T) {
	t.Parallel()
	u, db := freshDatabase(t, Row)
	address := notifierOf(t, rowAt(t, u)).address()
	through := must.Get(url.Parse(u))(t)
	p := faultproxy.New(t, through.Host)
	through.Host = p.Addr()
	h := hear(t, rowAt(t, through.String()).strategy.(*rowStrategy).store.notifier)
	got := h.waits(address)
	listening(t, db)
	p.Silence()
	for _, what := range []string{"the wait", "the next wait"} {
		select {
		case r := <-got:
			if r != "silent" {
				t.Errorf("%s: %s", what, r)
			}
		case <-time.After(patient):
			t.Fatalf("%s does not end", what)
		}
		got = h.waits(address) // connects
	}
}

// Any number of waiters uses only a few connections.
func TestWaitersTakeFewConnections(t *testing.T) {
	t.Parallel()
	u, db := freshDatabase(t, Row)
	pool := rowPool(t, u, nil)
	waiter := rowOn(t, pool)
	notifierOf(t, waiter)
	var closes []func()
	watch := func(name string) {
		r := asks(name, driver.Exclusive)
		r.Queue = true
		refused(t, waiter, r)
		w := must.Get(waiter.Watch(t.Context(), r))(t)
		closes = append(closes, w.Close)
	}
	hold := func(name string) {
		holder := rowAt(t, u)
		notifierOf(t, holder)
		take(t, holder, asks(name, driver.Exclusive))
	}
	hold("lock 0")
	for range 200 {
		watch("lock 0")
	}
	listening(t, db)
	inUse := func() int { reserved.Lock(); defer reserved.Unlock(); return reserved.conns[waiter.database.db] }
	if n := inUse(); n != 1 {
		t.Errorf("200 waiters for one lock keep %d connections; want the notifier's", n)
	}
	for i := range maxWaits + 2 {
		name := fmt.Sprint("lock ", i+1)
		hold(name)
		watch(name)
	}
	until(t, "all connections wait", func() bool { return inUse() == maxWaits })
	for range 50 {
		if n := inUse(); n > maxWaits {
			t.Fatalf("waiters for locks of many processes keep %d connections", n)
		}
		time.Sleep(time.Millisecond)
	}
	for _, f := range closes {
		f()
	}
}

// A process that waits has one connection. A second one is open for a moment when a statement meets a wait.
func TestAProcessThatWaitsHasOneConnection(t *testing.T) {
	t.Parallel()
	const processes = 12
	u, db := freshDatabase(t, Row)
	holder, mine := rowAt(t, u), asks("lock", driver.Exclusive)
	notifierOf(t, holder)
	take(t, holder, mine)
	var waiting, all sync.WaitGroup
	for range processes {
		b, r := rowAt(t, u), asks("lock", driver.Exclusive)
		notifierOf(t, b)
		r.Queue = true
		waiting.Add(1)
		all.Go(func() {
			refused(t, b, r)
			w := must.Get(b.Watch(t.Context(), r))(t)
			err := expect.Err(b.Acquire(t.Context(), r))
			for waiting.Done(); err != nil; err = expect.Err(b.Acquire(t.Context(), r)) {
				expect.Be(t, err, driver.ErrHeld)
				<-w.Ready
			}
			release(t, b, r)
		})
	}
	waiting.Wait()
	until(t, "each waiting process has one connection", func() bool {
		waits := sessionsIn(t, db, "User lock")
		others := ask(t, db, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE()") - waits
		return waits >= processes-1 && others <= 5 // this one, and the holder's
	})
	release(t, holder, mine)
	all.Wait()
}

// A notification interrupts its own process' wait, which then goes on. Neither is lost, whichever comes first.
func TestANotificationInterruptsAWait(t *testing.T) {
	t.Parallel()
	u, db := freshDatabase(t, Row)
	far, near := notifierOf(t, rowAt(t, u)), notifierOf(t, rowAt(t, u))
	follower := hear(t, notifierOf(t, rowAt(t, u)))
	waiter := hear(t, near)
	for range 20 {
		got := waiter.waits(far.address())
		listening(t, db)
		heard := follower.waits(near.address())
		near.Notify()
		if r := <-heard; r != "notified" {
			t.Fatalf("the follower of who waits: %s", r)
		}
		if r := <-got; r != "notified" { // by the interruption; it follows again
			t.Fatalf("who waits: %s", r)
		}
		listening(t, db)
		far.Notify()
		if r := <-got; r != "notified" {
			t.Fatalf("who waits, after the interruption: %s", r)
		}
	}
}

// A session that ended with a statement that its caller gave up is replaced at once.
func TestSessionIsBackAfterACancelledCall(t *testing.T) {
	t.Parallel()
	u, db := freshDatabase(t, Row)
	b := rowAt(t, u)
	n := notifierOf(t, b)
	n.retry = time.Hour
	before := n.address()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- n.use(ctx, &statement{text: "DO SLEEP(60)"}, func(ctx context.Context, _ *notifierSession, p *sql.Stmt) error {
			_, err := p.ExecContext(ctx)
			return err
		})
	}()
	until(t, "the statement runs", func() bool { return sessionsIn(t, db, "User sleep") == 1 })
	cancel()
	expect.Be(t, <-ended, context.Canceled)
	until(t, "there is another session", func() bool { next := n.address(); return next != "" && next != before })
}

// Two processes each of which waits for the other, for different locks, are both notified.
func TestProcessesWaitForEachOther(t *testing.T) {
	t.Parallel()
	u, db := freshDatabase(t, Row)
	a, b := notifierOf(t, rowAt(t, u)), notifierOf(t, rowAt(t, u))
	ofA, ofB := hear(t, b), hear(t, a)
	for range 5 {
		gotA, gotB := ofA.waits(a.address()), ofB.waits(b.address())
		until(t, "both wait", func() bool { return sessionsIn(t, db, "User lock") == 2 })
		a.Notify()
		if r := <-gotA; r != "notified" {
			t.Fatalf("who follows the first: %s", r)
		}
		b.Notify()
		if r := <-gotB; r != "notified" {
			t.Fatalf("who follows the second: %s", r)
		}
	}
}

// Close leaves no goroutine behind, and no session with a user-level lock.
func TestCloseEndsTheNotifier(t *testing.T) {
	u, db := freshDatabase(t, Row)
	before := runtime.NumGoroutine()
	holder := rowAt(t, u)
	notifierOf(t, holder)
	pool := rowPool(t, u, nil)
	waiter := rowOn(t, pool)
	address := notifierOf(t, waiter).address()
	r := asks("x", driver.Exclusive)
	take(t, holder, r)
	next := asks("x", driver.Exclusive)
	next.Queue = true
	refused(t, waiter, next)
	must.Get(waiter.Watch(t.Context(), next))(t)
	listening(t, db)
	must.OK(t, errors.Join(waiter.Close(), holder.Close()))
	if n := pool.Stats().InUse; n != 0 {
		t.Errorf("%d connections are in use after Close", n)
	}
	expect.OK(t, pool.PingContext(t.Context()), "the caller's pool")
	until(t, "the server has ended the sessions", func() bool {
		return ask(t, db, "SELECT IS_FREE_LOCK('distlock/"+address+"')") == 1 &&
			sessionsIn(t, db, "User lock") == 0
	})
	pool.Close()
	until(t, "goroutines have ended", func() bool { return runtime.NumGoroutine() <= before+8 })
}
