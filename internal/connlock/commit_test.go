package connlock

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	lock "github.com/distlock/distlock/driver"
)

func TestCommitEndsTheHold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newFake(t, &fakeServer{}, onePerConn)
		r := request("lock")
		take(t, b, r)
		if err := b.Commit(t.Context(), r.Owner, func(tx *sql.Tx) error {
			if tx == nil {
				t.Error("there is no transaction")
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		take(t, b, request("lock"))
		release(t, b, r) // it was released already
		if err := b.Release(t.Context(), r.Hold); !errors.Is(err, lock.ErrLost) {
			t.Errorf("a second Release: %v, want ErrLost", err)
		}
		if err := b.Commit(t.Context(), r.Owner, nil); !errors.Is(err, lock.ErrLost) {
			t.Errorf("a second Commit: %v, want ErrLost", err)
		}
	})
}

// A release while the work runs keeps the work from being stored.
func TestReleaseDuringACommit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newFake(t, &fakeServer{}, onePerConn)
		r := request("lock")
		take(t, b, r)
		err := b.Commit(t.Context(), r.Owner, func(*sql.Tx) error {
			if err := b.Renew(t.Context(), []lock.Hold{r.Hold})[0]; err == nil || errors.Is(err, lock.ErrLost) {
				t.Errorf("Renew: %v, want an error of unknown outcome", err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			b.Release(ctx, r.Hold)
			return nil
		})
		if !errors.Is(err, lock.ErrLost) {
			t.Errorf("%v, want ErrLost", err)
		}
		take(t, b, request("lock"))
	})
}

func TestCommitWithoutAnAnswer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newFake(t, &fakeServer{unanswered: true}, onePerConn)
		r := request("lock")
		take(t, b, r)
		err := b.Commit(t.Context(), r.Owner, func(*sql.Tx) error { return nil })
		if err == nil || errors.Is(err, lock.ErrLost) || !strings.Contains(err.Error(), "unknown") {
			t.Errorf("%v, want an unknown outcome", err)
		}
	})
}

// A driver that never returns from the end of a transaction blocks neither users of the connection nor
// Close.
func TestDetachIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
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

// A statement that finds the connection broken while a transaction is open returns, and so does Close.
func TestBrokenConnectionOfATransaction(t *testing.T) {
	bubble(t, func(t *testing.T) {
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
