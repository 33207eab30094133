package sqlrow

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"testing/synctest"

	"github.com/distlock/distlock/driver"
)

// calls starts a call for each step. It returns their results, each sent as soon as the call returns.
func calls(steps ...func() error) []chan error {
	results := make([]chan error, len(steps))
	for i, step := range steps {
		results[i] = make(chan error, 1)
		go func() { results[i] <- step() }()
	}
	return results
}

// returned reports whether a call has returned, once all goroutines wait.
func returned(result chan error) (err error, ok bool) {
	synctest.Wait()
	select {
	case err = <-result:
		return err, true
	default:
		return nil, false
	}
}

// gate holds back a dialect's statements of one kind until it is closed.
func gate(f *fake, what string) (open func()) {
	closed := make(chan struct{})
	f.before = func(w string) error {
		if w == what {
			<-closed
		}
		return nil
	}
	return func() { close(closed) }
}

// free returns requests for locks that were held before, so that their rows exist.
func free(t *testing.T, b *Backend, n int) []driver.Request {
	t.Helper()
	list := make([]driver.Request, n)
	for i := range list {
		list[i] = asks(fmt.Sprint("lock ", i), driver.Exclusive)
		if err := errors.Join(taking(t, b, list[i])(), giving(t, b, list[i])()); err != nil {
			t.Fatal(err)
		}
		list[i].Owner = driver.NewOwner()
	}
	return list
}

func steps(requests []driver.Request, step func(driver.Request) func() error) (all []func() error) {
	for _, r := range requests {
		all = append(all, step(r))
	}
	return all
}

// Calls that come while a statement is in flight share the next one, and each has an answer of its own.
func TestCallsShareStatements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		b := start(t, f)
		list := free(t, b, 20)
		if err := taking(t, b, asks("lock 7", driver.Exclusive))(); err != nil {
			t.Fatal(err)
		}
		f.counted()
		open := gate(f, "take")
		first := calls(taking(t, b, list[0]))
		synctest.Wait()
		others := calls(steps(list[1:], func(r driver.Request) func() error { return taking(t, b, r) })...)
		synctest.Wait()
		open()
		for i, result := range append(first, others...) {
			if err := <-result; errors.Is(err, driver.ErrHeld) != (i == 7) || i != 7 && err != nil {
				t.Errorf("lock %d: %v", i, err)
			}
		}
		want := map[string]int{"take": 1, "take all": 1, "read": 1}
		if got := f.counted(); !maps.Equal(got, want) {
			t.Errorf("20 attempts, one of them refused, take %v; want %v", got, want)
		}
		open = gate(f, "free")
		first = calls(giving(t, b, list[0]))
		synctest.Wait()
		others = calls(steps(list[1:], func(r driver.Request) func() error { return giving(t, b, r) })...)
		synctest.Wait()
		open()
		for i, result := range append(first, others...) {
			if err := <-result; errors.Is(err, driver.ErrLost) != (i == 7) || i != 7 && err != nil {
				t.Errorf("release of lock %d: %v", i, err)
			}
		}
		want = map[string]int{"free": 1, "free all": 1, "read": 1}
		if got := f.counted(); !maps.Equal(got, want) {
			t.Errorf("20 releases, one of them of nothing, take %v; want %v", got, want)
		}
	})
}

// A statement has at most one call for each lock, and only calls with the same terms.
func TestCallsApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		b := start(t, f)
		list := free(t, b, 6)
		list[3].TTL *= 2
		list[4].Meta = map[string]string{"pid": "7"}
		list[5].Name = list[2].Name
		f.counted()
		open := gate(f, "take")
		results := calls(taking(t, b, list[0]))
		synctest.Wait()
		for _, r := range list[1:] {
			results = append(results, calls(taking(t, b, r))...)
			synctest.Wait()
		}
		open()
		for i, result := range results {
			if err := <-result; errors.Is(err, driver.ErrHeld) != (i == 5) || i != 5 && err != nil {
				t.Errorf("call %d: %v", i, err)
			}
		}
		want := map[string]int{"take": 4, "take all": 1, "read": 1}
		if got := f.counted(); !maps.Equal(got, want) {
			t.Errorf("calls of several kinds take %v; want %v", got, want)
		}
	})
}

// A statement that waits, for a locked row or a server, delays no others.
func TestBlockedStatementDelaysNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		b := start(t, f)
		list := free(t, b, 9)
		open := gate(f, "take")
		blocked := calls(taking(t, b, list[0]))[0]
		synctest.Wait()
		for _, result := range calls(steps(list[1:], func(r driver.Request) func() error { return taking(t, b, r) })...) {
			if err := <-result; err != nil {
				t.Error(err)
			}
		}
		if err, ok := returned(blocked); ok {
			t.Errorf("the blocked call returned %v before the others", err)
		}
		open()
		if err := <-blocked; err != nil {
			t.Error(err)
		}
	})
}

// A row that is locked by another program concerns only its own call.
func TestLockedRowInBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		b := start(t, f)
		list := free(t, b, 9)
		f.locked = map[Key]bool{KeyOf(list[4].Name): true}
		open := gate(f, "take")
		results := calls(taking(t, b, list[0]))
		synctest.Wait()
		results = append(results, calls(steps(list[1:], func(r driver.Request) func() error { return taking(t, b, r) })...)...)
		synctest.Wait()
		open()
		for i, result := range results {
			if i == 4 {
				continue
			}
			if err := <-result; err != nil {
				t.Errorf("lock %d: %v", i, err)
			}
		}
		if err, ok := returned(results[4]); ok {
			t.Errorf("the call for a locked row returned %v before the others", err)
		}
		f.mu.Lock()
		f.locked = nil
		f.mu.Unlock()
		if err := <-results[4]; err != nil {
			t.Errorf("after the row was unlocked: %v", err)
		}
	})
}

// If the server refuses a statement, each call is sent by itself, and only the call at fault fails. After an
// error that leaves the outcome unknown nothing is sent again.
func TestErrorsInBatch(t *testing.T) {
	bad := errors.New("bad value")
	for _, c := range []struct {
		name  string
		err   error
		sent  int // single statements that reach the table
		fails func(i int) bool
	}{
		{"undone", ErrUndone, 8, func(i int) bool { return i == 4 }},
		{"invalid", driver.ErrInvalid, 8, func(i int) bool { return i == 4 }},
		{"unknown", errors.New("connection reset"), 1, func(i int) bool { return i > 0 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				b := start(t, f)
				list := free(t, b, 9)
				one := b.takes.one
				b.takes.one = func(ctx context.Context, r TakeRequest) (int64, error) {
					if r.Name == list[4].Name {
						return 0, bad
					}
					return one(ctx, r)
				}
				open := gate(f, "take")
				blocked := f.before
				f.before = func(what string) error {
					if what == "take all" {
						return c.err
					}
					return blocked(what)
				}
				f.counted()
				results := calls(taking(t, b, list[0]))
				synctest.Wait()
				results = append(results, calls(steps(list[1:], func(r driver.Request) func() error { return taking(t, b, r) })...)...)
				synctest.Wait()
				open()
				for i, result := range results {
					if err := <-result; (err != nil) != c.fails(i) {
						t.Errorf("lock %d: %v", i, err)
					}
				}
				if got := f.counted()["take"]; got != c.sent {
					t.Errorf("%d single statements; want %d", got, c.sent)
				}
			})
		})
	}
}

// A call whose context ends returns at once. If its statement is in flight, the release of its owner waits for
// that statement, so that nothing is granted after the release.
func TestCanceledCallInBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		b := start(t, f)
		list := free(t, b, 4)
		openFirst := gate(f, "take")
		blocked := f.before
		openBatch := gate(f, "take all")
		blockedBatch := f.before
		f.before = func(what string) error { return errors.Join(blocked(what), blockedBatch(what)) }
		ctx, cancel := context.WithCancel(t.Context())
		canceled := func(r driver.Request) func() error {
			return func() error { _, err := b.Acquire(ctx, r); return err }
		}
		first := calls(taking(t, b, list[0]))[0]
		synctest.Wait()
		others := calls(canceled(list[1]), taking(t, b, list[2]))
		synctest.Wait()
		openFirst()
		if err := <-first; err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		pending := calls(canceled(list[3]))[0]
		synctest.Wait()
		cancel()
		if err, ok := returned(others[0]); !ok || !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrUnsent) {
			t.Errorf("a canceled call in flight: %v, %v", err, ok)
		}
		if err, ok := returned(pending); !ok || !errors.Is(err, driver.ErrUnsent) {
			t.Errorf("a canceled call that is pending: %v, %v", err, ok)
		}
		released := calls(giving(t, b, list[1]))[0]
		if err, ok := returned(released); ok {
			t.Errorf("a release overtakes its canceled acquire: %v", err)
		}
		openBatch()
		if err := errors.Join(<-others[1], <-released); err != nil {
			t.Error(err)
		}
		if got := f.rows[KeyOf(list[1].Name)].Owner; got != "" {
			t.Errorf("after the release %q holds", got)
		}
		if len(b.takes.left) != 0 || len(b.takes.pending) != 0 {
			t.Errorf("%d and %d calls are left", len(b.takes.left), len(b.takes.pending))
		}
	})
}
