package connlock

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	lock "github.com/distlock/distlock/driver"
)

// A statement that never returns, whatever its context says, is not waited for.
func TestCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, b := newFake(t)
		r := fakeRequest("lock")
		if _, err := b.Acquire(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		blocked := make(chan struct{})
		f.mu.Lock()
		f.blocked = blocked
		f.mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if errs := b.Renew(ctx, []lock.Hold{r.Hold}); errs[0] == nil {
			t.Error("renewed without an answer")
		}
		began := time.Now()
		if err := b.Close(); err == nil {
			t.Error("Close does not say that a connection has not ended")
		}
		if took := time.Since(began); took > closeTime {
			t.Errorf("Close took %v, want %v at most", took, closeTime)
		}
		close(blocked)
		synctest.Wait()
	})
}

// A driver that does not return from the end of a transaction takes neither those down who use the
// connection nor those who close it.
func TestLeaveIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeServer{rolling: make(chan struct{})}
		conn, err := f.pool(t).Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		x := &Tx{Conn: conn}
		if _, err := x.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		x.Detach(ctx)
		if err := x.Exec(t.Context(), "anything"); !errors.Is(err, sql.ErrTxDone) {
			t.Errorf("Exec: %v, want ErrTxDone", err)
		}
		if err := x.Raw(func(any) error { return nil }); !errors.Is(err, errStuck) {
			t.Errorf("Raw: %v, want errStuck", err)
		}
		x.Close()
		close(f.rolling)
		synctest.Wait()
	})
}

// A statement finds the connection broken while a transaction is open: that is answered, and so is
// the end of both.
func TestBrokenConnectionOfATransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, err := (&fakeServer{}).pool(t).Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		x := &Tx{Conn: conn}
		if _, err := x.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := x.Exec(t.Context(), "anything"); err == nil {
			t.Error("no error")
		}
		x.Close()
	})
}
