package sqlitelock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
	"github.com/distlock/distlock/internal/metajson"
	"github.com/distlock/distlock/internal/wait"
)

// Backend is an open lock file. Its methods are safe for concurrent use.
type Backend struct {
	path        string
	clock       clock
	busyTimeout time.Duration
	db          *sql.DB
	w           *writer
	notifier    *notifier
	guard       *guard
	meta        metajson.Cache

	life context.Context // ends with Close
	end  context.CancelFunc
}

// start sets the file up and starts the writer. alone: calls may run by themselves.
func start(ctx context.Context, db *sql.DB, path string, busyTimeout time.Duration, alone bool, clk clock) (*Backend, error) {
	g, err := openGuard(path)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, errors.Join(explain(g, path, err), db.Close(), g.close())
	}
	b := &Backend{path: path, clock: clk, busyTimeout: busyTimeout, db: db, guard: g}
	b.life, b.end = context.WithCancel(context.Background())
	b.w = &writer{
		turn: make(chan struct{}, 1), alone: alone,
		conn: conn, clock: clk, busyTimeout: busyTimeout,
		jobs: make(chan *job), life: b.life, done: make(chan struct{}),
		sweep: sweeper{idle: sweepIdle},
	}
	if err := b.prepare(ctx); err != nil {
		b.end()
		return nil, errors.Join(err, b.shut())
	}
	go func() {
		_ = conn.Raw(func(any) error { b.w.run(); return nil })
		b.w.err = b.shut()
		close(b.w.done)
	}()
	return b, nil
}

// prepare does the part of start that can fail.
func (b *Backend) prepare(ctx context.Context) (err error) {
	// SQLite's own waiting is slow to notice that a busy file is free.
	if _, err := b.w.conn.ExecContext(ctx, "PRAGMA busy_timeout=0"); err != nil {
		return err
	}
	if err := b.join(ctx); err != nil {
		return err
	}
	if b.notifier, err = newNotifier(b.path); err != nil {
		return err
	}
	b.w.notifier = b.notifier
	return b.w.conn.Raw(func(conn any) error { return b.w.stmts.prepare(ctx, conn.(sqldriver.Conn)) })
}

// join opens the tables as soon as no other process writes.
func (b *Backend) join(ctx context.Context) (err error) {
	j := joiner{conn: b.w.conn, path: b.path, clock: b.clock, guard: b.guard}
	start := time.Now()
	for try := 0; ; try++ {
		if b.w.files, b.clock.boot, err = j.join(ctx); !isBusy(err) {
			b.w.clock.boot = b.clock.boot
			return explain(b.guard, b.path, err)
		}
		if time.Since(start) > b.busyTimeout {
			return tooBusy(b.busyTimeout, err)
		}
		if ended := wait.Sleep(ctx, busyPause(try)); ended != nil {
			return fmt.Errorf("%w: %w", ended, err)
		}
	}
}

// Caps returns all modes, fences, and queues on request.
func (b *Backend) Caps() driver.Caps {
	return driver.Caps{
		Name:      "sqlite:" + b.path,
		Modes:     driver.AllModes,
		Fence:     true,
		Floor:     true,
		Downgrade: true,
		Detached:  true,
		Queueing:  driver.QueueOnRequest,
		MinTTL:    claims.MinTTL,
		MaxTTL:    claims.MaxTTL,
		Poll:      time.Millisecond,
	}
}

// Watch signals releases of the lock and of places in its queue. It works on Linux;
// elsewhere it returns ErrSkip.
func (b *Backend) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	if b.life.Err() != nil {
		return driver.Watch{}, b.wrap("watch", r.Name, driver.ErrClosed)
	}
	if err := ctx.Err(); err != nil {
		return driver.Watch{}, b.wrap("watch", r.Name, err)
	}
	w, err := b.notifier.watch(r)
	return w, b.wrap("watch", r.Name, err)
}

// Inspect describes a lock. It does not wait for writers.
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Info, error) {
	if b.life.Err() != nil {
		return driver.Info{}, b.wrap("inspect", name, driver.ErrClosed)
	}
	i, err := b.inspect(ctx, name)
	return i, b.wrapRead("inspect", name, err)
}

func (b *Backend) inspect(ctx context.Context, name string) (i driver.Info, err error) {
	if err := b.w.files.check(); err != nil {
		return i, err
	}
	conn, err := b.db.Conn(ctx)
	if err != nil {
		return i, err
	}
	defer conn.Close()
	err = conn.Raw(func(raw any) error {
		s := &statement{conn: raw.(sqldriver.Conn), text: sqlLoad}
		defer s.close()
		now := b.clock.now()
		l, err := load(ctx, s, name, b.clock.boot, now)
		if err == nil {
			i = l.Info(name, now)
		}
		return err
	})
	return i, err
}

// List yields the names that have holders or waiters, in the order of their bytes. yield
// may call the backend.
func (b *Backend) List(ctx context.Context, prefix string, yield func(name string) bool) error {
	if b.life.Err() != nil {
		return b.wrap("list", prefix, driver.ErrClosed)
	}
	if err := b.checkBoot(ctx); err != nil {
		return b.wrapRead("list", prefix, err)
	}
	err := claims.Pages(prefix, func(after string) ([]string, error) { return b.page(ctx, prefix, after) }, yield)
	return b.wrapRead("list", prefix, err)
}

func (b *Backend) checkBoot(ctx context.Context) error {
	if err := b.w.files.check(); err != nil {
		return err
	}
	var n int
	if err := b.db.QueryRowContext(ctx, sqlBoot, b.clock.boot).Scan(&n); err != nil {
		return err
	}
	if n == 0 {
		return errAnotherBoot
	}
	return nil
}

// page reads the next names after a name. They are in order, so those with the prefix come first.
func (b *Backend) page(ctx context.Context, prefix, after string) ([]string, error) {
	rows, err := b.db.QueryContext(ctx, sqlList, prefix, after, b.clock.now(), claims.ListPage)
	if err != nil {
		return nil, err
	}
	return claims.ScanNames(rows)
}

// Close ends the backend's goroutines and connections. Holds stay until another backend
// releases them or their TTL has passed. An error about a write that takes too long means
// that the rest is closed once the disk has finished it.
func (b *Backend) Close() error {
	b.end()
	t := time.NewTimer(b.busyTimeout)
	defer t.Stop()
	select {
	case <-b.w.done:
		return b.w.err
	case <-t.C:
		return fmt.Errorf("sqlitelock: close %s: the last write takes longer than %v", b.path, b.busyTimeout)
	}
}

// shut closes everything that start opened, after the writer has ended or could not start.
func (b *Backend) shut() error {
	// SQLite removes -wal and -shm with the last connection: a process that opens the file then works on others.
	errs := []error{b.guard.leave(), b.w.stmts.close()}
	if b.notifier != nil {
		errs = append(errs, b.notifier.close())
	}
	return errors.Join(append(errs, b.w.conn.Close(), b.db.Close(), b.guard.close())...)
}

// wrap adds the operation and the name to err.
func (b *Backend) wrap(op, name string, err error) error {
	if err == nil {
		return nil
	}
	if isUnknown(err) {
		return fmt.Errorf("sqlitelock: %s %s in %s: %w", op, driver.Quote(name), b.path, err)
	}
	return fmt.Errorf("sqlitelock: %s %s: %w", op, driver.Quote(name), err)
}

// wrapRead is like wrap, for readers that Close may have interrupted.
func (b *Backend) wrapRead(op, name string, err error) error {
	if err != nil && b.life.Err() != nil {
		err = driver.ErrClosed
	}
	return b.wrap(op, name, err)
}
