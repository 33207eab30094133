package sqlitelock

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// writeLock blocks other writers until unlock is called.
func writeLock(t *testing.T, path string) (unlock func()) {
	t.Helper()
	db := must.Get(sql.Open("sqlite", "file:"+path))(t)
	conn := must.Get(db.Conn(context.Background()))(t)
	must.Get(conn.ExecContext(context.Background(), "BEGIN IMMEDIATE"))(t)
	return func() {
		expect.OK(t, errors.Join(conn.Close(), db.Close()))
	}
}

func TestContextEndsWhileAnotherWrites(t *testing.T) {
	path := lockFile(t)
	b := connectWith(t, path, &Options{BusyTimeout: time.Hour})
	mine := request("mine", driver.Exclusive, long)
	take(t, b, mine)
	unlock := writeLock(t, path)
	calls := map[string]func(context.Context) error{
		"acquire": func(ctx context.Context) error {
			_, err := b.Acquire(ctx, request("x", driver.Exclusive, long))
			return err
		},
		"renew":   func(ctx context.Context) error { return b.Renew(ctx, []driver.Hold{mine.Hold})[0] },
		"release": func(ctx context.Context) error { return b.Release(ctx, mine.Hold) },
	}
	for name, call := range calls {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		err := call(ctx) // without its context it would wait for an hour
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || !unknown(err) {
			t.Errorf("%s: %v; want an unknown outcome that matches the deadline", name, err)
		}
	}
	info, err := b.Inspect(t.Context(), "mine")
	if err != nil || len(info.Holders) != 1 {
		t.Errorf("a reader does not wait for writers: %+v, %v", info, err)
	}
	// The writer drops abandoned jobs before it takes in another one.
	b.store.w.jobs <- b.store.w.newJob(t.Context(), func(*job) error { return nil })
	unlock()
	// The abandoned jobs don't land later.
	take(t, b, request("x", driver.Exclusive, long))
	free(t, b, mine)
}

func unknown(err error) bool {
	return err != nil && !driver.Final(err) && !errors.Is(err, driver.ErrHeld) && !errors.Is(err, driver.ErrLost)
}

func TestBusyTimeout(t *testing.T) {
	path := lockFile(t)
	b := connectWith(t, path, &Options{BusyTimeout: time.Second}) // Close needs it, too
	defer writeLock(t, path)()
	_, err := b.Acquire(t.Context(), request("x", driver.Exclusive, long))
	if !unknown(err) || !isBusy(err) {
		t.Fatalf("got %v; want SQLITE_BUSY as an unknown outcome", err)
	}
}

func TestCloseWhileAnotherWrites(t *testing.T) {
	path := lockFile(t)
	b := connect(t, path)
	defer writeLock(t, path)()
	got := make(chan error, 1)
	go func() {
		_, err := b.Acquire(context.Background(), request("x", driver.Exclusive, long))
		got <- err
	}()
	must.OK(t, b.Close())
	wantIs(t, <-got, driver.ErrClosed)
}

func TestFileRemoved(t *testing.T) {
	path := lockFile(t)
	a := connect(t, path)
	r := request("x", driver.Exclusive, long)
	take(t, a, r)
	must.OK(t, os.Remove(path))
	if err := a.Renew(t.Context(), []driver.Hold{r.Hold})[0]; !unknown(err) {
		t.Errorf("renew in a removed file: %v; want unknown", err)
	}
	for _, side := range []string{"-wal", "-shm"} {
		must.OK(t, os.Remove(path+side))
	}
	take(t, connect(t, path), request("x", driver.Exclusive, long))
	if _, err := a.Acquire(t.Context(), request("y", driver.Exclusive, long)); !unknown(err) {
		t.Errorf("acquire in a replaced file: %v; want unknown", err)
	}
}

// TestFull makes SQLite run out of pages.
func TestFull(t *testing.T) {
	b := connect(t, lockFile(t))
	mine := request("mine", driver.Exclusive, long)
	take(t, b, mine)
	limitPages(t, b, "PRAGMA max_page_count=1")
	err := fill(t, b)
	if !unknown(err) {
		t.Fatalf("full: %v; want unknown", err)
	}
	expect.OK(t, b.Renew(t.Context(), []driver.Hold{mine.Hold})[0], "a hold is lost when the disk is full")
	refused(t, b, request("mine", driver.Exclusive, long))
	limitPages(t, b, "PRAGMA max_page_count=100000")
	take(t, b, request("later", driver.Exclusive, long))
	free(t, b, mine)
}

func limitPages(t *testing.T, b *Backend, pragma string) {
	t.Helper()
	must.OK(t, b.store.w.do(t.Context(), func(*job) error {
		s := &statement{conn: b.store.w.stmts.conn, text: pragma}
		_, err := s.exec()
		return errors.Join(err, s.close())
	}))
}

// fill takes locks until one fails.
func fill(t *testing.T, b *Backend) error {
	t.Helper()
	for range 1000 {
		r := request(driver.NewOwner(), driver.Exclusive, long)
		r.Meta = map[string]string{"text": string(make([]byte, 1000))}
		if _, err := b.Acquire(t.Context(), r); err != nil {
			return err
		}
	}
	return nil
}

// TestOneFailureInABatch runs a failing job in a batch with others.
func TestOneFailureInABatch(t *testing.T) {
	b := connect(t, lockFile(t))
	bad := errors.New("bad")
	begun, block := make(chan struct{}), make(chan struct{})
	held := make(chan error, 1)
	go func() {
		held <- b.store.w.do(context.Background(), func(*job) error { close(begun); <-block; return nil })
	}()
	<-begun
	got := make(chan error, 3)
	for i := range 3 {
		go func() {
			got <- b.store.w.do(context.Background(), func(j *job) error {
				if i == 1 {
					return bad
				}
				_, err := j.swap(claimOf("x" + driver.NewOwner()))
				return err
			})
		}()
	}
	for b.store.w.calls.Load() < 4 {
		time.Sleep(time.Millisecond)
	}
	close(block)
	expect.OK(t, <-held)
	var failures int
	for range 3 {
		if err := <-got; errors.Is(err, bad) {
			failures++
		} else if err != nil {
			t.Error(err)
		}
	}
	expect.Equal(t, failures, 1, "jobs failed")
}

// After a batch has failed, an abandoned job does not run: the call that follows it may have been served meanwhile.
func TestAbandonedJobInAFailedBatch(t *testing.T) {
	b := connect(t, lockFile(t))
	bad := errors.New("bad")
	ctx, cancel := context.WithCancel(t.Context())
	first := b.store.w.newJob(t.Context(), func(*job) error { cancel(); return bad })
	second := b.store.w.newJob(ctx, func(*job) error { t.Error("the abandoned job runs"); return nil })
	b.store.w.turn <- struct{}{}
	must.OK(t, b.store.w.attempt([]*job{first, second}))
	<-b.store.w.turn
	wantIs(t, <-first.done, bad)
	wantIs(t, <-second.done, context.Canceled)
}

// A call runs on its own goroutine if no other is under way, and a commit does not wait for the disk.
func TestCallAlone(t *testing.T) {
	t.Parallel()
	b := connect(t, lockFile(t))
	isAlone := func(b *Backend) (is bool) {
		must.OK(t, b.store.w.do(t.Context(), func(*job) error {
			is = bytes.Contains(debug.Stack(), []byte("runAlone"))
			return nil
		}))
		return is
	}
	expect.Equal(t, isAlone(b), true, "the first call is alone")
	other := b.store.w.newJob(t.Context(), func(*job) error { return nil })
	expect.Equal(t, isAlone(b), false, "a call beside another is alone")
	must.OK(t, b.store.w.enqueue(other))
	b.store.w.turn <- struct{}{} // the goroutine gives it back after the answer
	<-b.store.w.turn
	expect.Equal(t, isAlone(b), true, "a later call is alone")
	expect.Equal(t, isAlone(connectWith(t, lockFile(t), &Options{Synchronous: Full})), false, "a call that waits for the disk is alone")
}

// Calls that come alone leave checkpoints, which wait for the disk, to the goroutine: it makes them before SQLite would, after
// 1000 pages.
func TestCheckpoints(t *testing.T) {
	t.Parallel()
	path := lockFile(t)
	b := connect(t, path)
	for range 4 * checkpointEvery {
		r := request("order:1", driver.Exclusive, long)
		take(t, b, r)
		free(t, b, r)
	}
	if wal := must.Get(os.Stat(path + "-wal"))(t); wal.Size() > 1000<<12 {
		t.Errorf("the WAL has grown to %d bytes", wal.Size())
	}
}

// Opening a file that is in use writes nothing, and does not wait for writers.
func TestOpenAgainWhileAnotherWrites(t *testing.T) {
	path := lockFile(t)
	connect(t, path)
	defer writeLock(t, path)()
	b := must.Get(OpenFile(t.Context(), path, &Options{BusyTimeout: 10 * time.Second}))(t)
	expect.OK(t, b.Close())
}

// A renewal whose context ends is unknown for all holds of its transaction, also if the writer finds out more at that moment: the
// transaction may still be rolled back. Some holds may have been renewed by one before: what an earlier call has abandoned may land
// between two reads.
func TestAbandonedRenewals(t *testing.T) {
	t.Parallel()
	b := connect(t, lockFile(t))
	var holds []driver.Hold
	for i := range 128 {
		h := driver.Hold{Name: fmt.Sprint("job ", i), Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: time.Hour}
		must.Get(b.Acquire(t.Context(), driver.Request{Hold: h, Fences: 1}))(t)
		holds = append(holds, h)
	}
	began := time.Now()
	must.OK(t, errors.Join(b.Renew(t.Context(), holds)...))
	took := time.Since(began)
	abandoned := 0
	for range 300 {
		ctx, cancel := context.WithTimeout(t.Context(), rand.N(3*took/2))
		err := errors.Join(b.Renew(ctx, holds)...)
		cancel()
		if err == nil {
			continue
		}
		abandoned++
		for _, err := range err.(interface{ Unwrap() []error }).Unwrap() {
			must.Be(t, err, context.DeadlineExceeded)
		}
	}
	if abandoned == 0 {
		t.Error("no context ended in time")
	}
	must.OK(t, errors.Join(b.Renew(t.Context(), holds)...))
}
