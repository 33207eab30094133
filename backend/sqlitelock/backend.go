package sqlitelock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

// Backend is an open lock file. Its methods are safe for concurrent use.
type Backend struct {
	path  string
	clock clock
	db    *sql.DB
	look  *sql.Stmt // for readers; the writer has its own
	w     *writer
	bell  *bell

	closing chan struct{} // closed by Close
	once    sync.Once
	patient time.Duration // how long Close waits for the writer
}

// start sets the file up and starts the writer.
func start(ctx context.Context, db *sql.DB, path string, opt Options, clk clock) (*Backend, error) {
	b := &Backend{path: path, clock: clk, db: db, closing: make(chan struct{}), patient: opt.BusyTimeout}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	b.w = &writer{
		conn: conn, stmts: &stmts{}, clock: clk, path: path, patience: opt.BusyTimeout,
		jobs: make(chan *job), closing: b.closing, done: make(chan struct{}),
		sweep: sweeper{idle: sweepIdle},
	}
	if err := b.prepare(ctx); err != nil {
		return nil, errors.Join(err, b.shut())
	}
	go b.w.run(b.shut)
	return b, nil
}

// prepare does what may fail of start.
func (b *Backend) prepare(ctx context.Context) (err error) {
	// SQLite's own waiting is slow to notice that a busy file is free.
	if _, err := b.w.conn.ExecContext(ctx, "PRAGMA busy_timeout=0"); err != nil {
		return err
	}
	if err := setUp(ctx, b.w.conn, b.clock.boot, b.patient); err != nil {
		return err
	}
	if b.w.file, err = os.Stat(b.path); err != nil {
		return err
	}
	if b.bell, err = newBell(b.path); err != nil {
		return err
	}
	b.w.bell = b.bell
	if b.look, err = b.db.PrepareContext(ctx, sqlLook); err != nil {
		return err
	}
	return b.w.stmts.prepare(ctx, b.w.conn)
}

// Caps: all modes, fences, and lines on request.
func (b *Backend) Caps() driver.Caps {
	return driver.Caps{
		Name:      "sqlite:" + b.path,
		Modes:     driver.AllModes,
		Fence:     true,
		Floor:     true,
		Downgrade: true,
		Queueing:  driver.QueueOnRequest,
		MinTTL:    claims.MinTTL,
		MaxTTL:    claims.MaxTTL,
		Poll:      time.Millisecond,
	}
}

// Close ends the backend's goroutine and connections. Holds stay until they are
// released by another backend or their TTL has passed. An error says that the disk
// still works on a write; the rest is closed when it is done.
func (b *Backend) Close() error {
	b.once.Do(func() { close(b.closing) })
	t := time.NewTimer(b.patient)
	defer t.Stop()
	select {
	case <-b.w.done:
		return b.w.err
	case <-t.C:
		return fmt.Errorf("sqlitelock: close %s: the last write takes longer than %v", b.path, b.patient)
	}
}

// shut closes what the backend opened, once the writer has ended or when it could
// not start.
func (b *Backend) shut() error {
	errs := []error{b.w.stmts.close()}
	if b.look != nil {
		errs = append(errs, b.look.Close())
	}
	if b.bell != nil {
		errs = append(errs, b.bell.close())
	}
	return errors.Join(append(errs, b.w.conn.Close(), b.db.Close())...)
}

func (b *Backend) closed() bool {
	select {
	case <-b.closing:
		return true
	default:
		return false
	}
}

// wrap says what failed.
func (b *Backend) wrap(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("sqlitelock: %s %s: %w", op, driver.Quote(name), err)
}

// wrapRead is wrap for readers, whom Close may have cut short.
func (b *Backend) wrapRead(op, name string, err error) error {
	if err != nil && b.closed() {
		err = driver.ErrClosed
	}
	return b.wrap(op, name, err)
}
