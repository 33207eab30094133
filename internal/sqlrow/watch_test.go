package sqlrow

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
)

var signalled = locktest.Signalled

const patient = 2 * time.Minute

// testNotifier is a notifier that the test controls.
type testNotifier struct {
	listened      chan string   // the addresses that are listened to
	notifications chan struct{} // one notification each
	silent        bool
	armErr        error
}

func newTestNotifier() *testNotifier {
	return &testNotifier{listened: make(chan string, 1000), notifications: make(chan struct{})}
}

func (n *testNotifier) Address(time.Duration) string { return "address" }
func (n *testNotifier) Notify(Key)                   {}
func (n *testNotifier) Listen(Key) Listener          { return n }
func (n *testNotifier) Arm(context.Context) error    { return n.armErr }

func (n *testNotifier) Wait(ctx context.Context, tag string) (notified, silent bool) {
	select {
	case n.listened <- tag:
	default:
	}
	if n.silent {
		return false, true
	}
	select {
	case <-n.notifications:
		return true, false
	case <-ctx.Done():
		return false, false
	}
}

// closingNotifier is a testNotifier that a Backend may close.
type closingNotifier struct{ *testNotifier }

func (closingNotifier) Close() error { return nil }

func (n *testNotifier) Close() {}

func startWith(t *testing.T, f *fake, d *testNotifier) *Backend {
	t.Helper()
	b := New(f, Options{Package: "test", Name: "test", Notifier: func(*Backend) Notifier { return closingNotifier{d} }})
	t.Cleanup(func() { b.Close() })
	return b
}

func watching(t *testing.T, b *Backend, r driver.Request) driver.Watch {
	t.Helper()
	w, err := b.Watch(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func quiet(t *testing.T, w driver.Watch, why string) {
	t.Helper()
	select {
	case <-w.Ready:
		t.Fatalf("a signal: %s", why)
	case <-time.After(20 * time.Millisecond):
	}
}

// One listener waits at the holder's address for all waiters, and marks the row as waited for.
func TestWatchListens(t *testing.T) {
	f, d := newFake(), newTestNotifier()
	b := startWith(t, f, d)
	holder, one, two := asks("x", driver.Exclusive), asks("x", driver.Exclusive), asks("x", driver.Exclusive)
	if err := taking(t, b, holder)(); err != nil {
		t.Fatal(err)
	}
	f.counted()
	w1, w2 := watching(t, b, one), watching(t, b, two)
	defer w1.Close()
	defer w2.Close()
	if tag := <-d.listened; tag != "address" {
		t.Errorf("a listener waits for %q", tag)
	}
	if waiting := f.rows[KeyOf("x")].Waiting; waiting <= time.Now().Add(slice).UnixMicro() {
		t.Errorf("the row is marked as waited for until %d", waiting)
	}
	quiet(t, w1, "nothing happened")
	if err := start(t, f).Release(t.Context(), holder.Hold); err != nil {
		t.Fatal(err)
	}
	d.notifications <- struct{}{}
	signalled(t, w1, "the listener was notified")
	signalled(t, w2, "the listener was notified")
	if n := f.counted()["mark"]; n != 1 {
		t.Errorf("the row was marked %d times", n)
	}
}

// Without notifications the row is polled, and a waiter is woken when the lock is free.
func TestWatchPolls(t *testing.T) {
	for what, d := range map[string]*testNotifier{
		"no notifier": {listened: make(chan string, 1), silent: true},
		"no listener": {listened: make(chan string, 1), armErr: errors.New("not listening")},
	} {
		f := newFake()
		b, other := startWith(t, f, d), start(t, f)
		holder := asks("x", driver.Exclusive)
		if err := taking(t, other, holder)(); err != nil {
			t.Fatal(err)
		}
		w := watching(t, b, asks("x", driver.Exclusive))
		quiet(t, w, what+", and it is held")
		if err := giving(t, other, holder)(); err != nil {
			t.Fatal(err)
		}
		signalled(t, w, what+", and it is free")
		w.Close()
	}
}

// A database that does not answer neither blocks a watch for ever nor ends it.
func TestWatchWithoutDatabase(t *testing.T) {
	f := newFake()
	broken := errors.New("gone")
	b := start(t, f)
	f.interpose(func(string) error { return broken })
	if _, err := b.Watch(t.Context(), asks("x", driver.Exclusive)); !errors.Is(err, broken) || driver.Final(err) {
		t.Errorf("watch: %v", err)
	}
}

// Close ends listeners and calls of Watch in progress.
func TestCloseEndsWatches(t *testing.T) {
	before := runtime.NumGoroutine()
	f, d := newFake(), newTestNotifier()
	b := startWith(t, f, d)
	holder := asks("x", driver.Exclusive)
	if err := taking(t, b, holder)(); err != nil {
		t.Fatal(err)
	}
	w := watching(t, b, asks("x", driver.Exclusive))
	reached, leave := make(chan struct{}), make(chan struct{})
	f.interpose(func(string) error {
		close(reached)
		<-leave
		return nil
	})
	failed := make(chan error, 1)
	go func() {
		_, err := b.Watch(t.Context(), asks("y", driver.Exclusive))
		failed <- err
	}()
	<-reached
	closed := make(chan error, 1)
	go func() { closed <- b.Close() }()
	if err := <-failed; !errors.Is(err, driver.ErrClosed) {
		t.Errorf("watch: %v", err)
	}
	close(leave)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	w.Close()
	if _, err := b.Watch(t.Context(), asks("z", driver.Exclusive)); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("watch: %v", err)
	}
	for end := time.Now().Add(patient); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
}

// A waiter's attempt shows its watch the row: together they read it once, and listen at the address just ahead.
func TestWatchSeesWhatTheAttemptSaw(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, d := newFake(), newTestNotifier()
		b, other := startWith(t, f, d), start(t, f)
		holder, waiter := asks("x", driver.Exclusive), asks("x", driver.Exclusive)
		waiter.Queue = true
		must.OK(t, taking(t, other, holder)())
		for _, marks := range []int{1, 0} { // a mark needs another look
			f.counted()
			w := watching(t, b, waiter)
			must.Be(t, taking(t, b, waiter)(), driver.ErrHeld)
			<-d.listened
			if got := f.counted(); got["contend"] != 1 || got["mark"] != marks || got["read"] != 1+marks {
				t.Errorf("%v; want one attempt and %d reads", got, 1+marks)
			}
			w.Close()
			must.OK(t, giving(t, b, waiter)())
		}
		b.Close()
	})
}

// slowRead is a fake whose answer to a Read takes a while to arrive.
type slowRead struct {
	*fake
	meanwhile func()
}

func (d *slowRead) Read(ctx context.Context, names []string) (int64, []Row, error) {
	now, rows, err := d.fake.Read(ctx, names)
	if f := d.meanwhile; f != nil {
		d.meanwhile = nil
		f()
	}
	return now, rows, err
}

// What a waiter's attempt saw is not taken for the row as it is after a release in the same process.
func TestWatchSeesAReleaseAfterTheAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, n := &slowRead{fake: newFake()}, newTestNotifier()
		b := New(d, Options{Package: "test", Name: "test", Notifier: func(*Backend) Notifier { return closingNotifier{n} }})
		defer b.Close()
		holder, waiter := asks("x", driver.Exclusive), asks("x", driver.Exclusive)
		waiter.Queue = true
		must.OK(t, taking(t, b, holder)())
		defer watching(t, b, asks("x", driver.Exclusive)).Close() // the row is marked
		synctest.Wait()
		w := watching(t, b, waiter)
		defer w.Close()
		since := time.Now()
		d.meanwhile = func() { must.OK(t, giving(t, b, holder)()) }
		must.Be(t, taking(t, b, waiter)(), driver.ErrHeld)
		<-w.Ready
		if took := time.Since(since); took >= slice {
			t.Errorf("woken after %v", took)
		}
	})
}
