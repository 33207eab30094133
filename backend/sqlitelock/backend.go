package sqlitelock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/distlock/distlock/internal/engine"
	"github.com/distlock/distlock/internal/wait"
)

// Backend is an open lock file. Its methods are safe for concurrent use.
type Backend struct {
	*locks
	store *store
}

// locks are the Backend's methods.
type locks = engine.Backend

// store implements engine's Store: a row for each name.
type store struct {
	path        string
	busyTimeout time.Duration
	db          *sql.DB
	w           *writer
	notifier    *notifier
	guard       *guard

	life context.Context // ends with Close
	end  context.CancelFunc

	mu   sync.Mutex
	read *sql.Stmt // nil before the first Read: a command that holds one lock has one connection
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
	s := &store{path: path, busyTimeout: busyTimeout, db: db, guard: g}
	s.life, s.end = context.WithCancel(context.Background())
	s.w = &writer{
		turn: make(chan struct{}, 1), alone: alone,
		conn: conn, clock: clk, busyTimeout: busyTimeout,
		jobs: make(chan *job), life: s.life, done: make(chan struct{}),
		sweep: sweeper{idle: sweepIdle},
	}
	if err := s.prepare(ctx); err != nil {
		s.end()
		return nil, errors.Join(err, s.shut())
	}
	go func() {
		_ = conn.Raw(func(any) error { s.w.run(); return nil })
		s.w.err = s.shut()
		close(s.w.done)
	}()
	return &Backend{engine.New(s, engine.Options{Package: "sqlitelock", Name: "sqlite:" + path, Clock: s.w.clock.micros}), s}, nil
}

// prepare does the part of start that can fail.
func (s *store) prepare(ctx context.Context) (err error) {
	// SQLite's own waiting is slow to notice that a busy file is free.
	if _, err := s.w.conn.ExecContext(ctx, "PRAGMA busy_timeout=0"); err != nil {
		return err
	}
	if err := s.join(ctx); err != nil {
		return err
	}
	if s.notifier, err = newNotifier(s.path); err != nil {
		return err
	}
	s.w.notifier = s.notifier
	return s.w.conn.Raw(func(conn any) error { return s.w.stmts.prepare(ctx, conn.(sqldriver.Conn)) })
}

// join opens the tables as soon as no other process writes.
func (s *store) join(ctx context.Context) (err error) {
	j := joiner{conn: s.w.conn, path: s.path, clock: s.w.clock, guard: s.guard}
	var r record
	start := time.Now()
	for try := 0; ; try++ {
		if s.w.files, r, err = j.join(ctx); !isBusy(err) {
			s.w.clock.boot, s.w.clock.ahead = r.boot, r.ahead
			return explain(s.guard, s.path, err)
		}
		if time.Since(start) > s.busyTimeout {
			return tooBusy(s.busyTimeout, err)
		}
		if ended := wait.Sleep(ctx, busyPause(try)); ended != nil {
			return fmt.Errorf("%w: %w", ended, err)
		}
	}
}

// Close ends the backend's goroutines and connections. Holds stay until another backend
// releases them or their TTL has passed. An error about a write that takes too long means
// that the rest is closed once the disk has finished it.
func (s *store) Close() error {
	s.end()
	t := time.NewTimer(s.busyTimeout)
	defer t.Stop()
	select {
	case <-s.w.done:
		return s.w.err
	case <-t.C:
		return fmt.Errorf("%s: the last write takes longer than %v", s.path, s.busyTimeout)
	}
}

// shut closes everything that start opened, after the writer has ended or could not start.
func (s *store) shut() error {
	// SQLite removes -wal and -shm with the last connection: a process that opens the file then works on others.
	errs := []error{s.guard.leave(), s.w.stmts.close()}
	if s.notifier != nil {
		errs = append(errs, s.notifier.close())
	}
	return errors.Join(append(errs, s.w.conn.Close(), s.db.Close(), s.guard.close())...)
}
