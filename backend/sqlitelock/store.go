package sqlitelock

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
	"github.com/distlock/distlock/internal/engine"
)

// Read does not wait for writers.
func (s *store) Read(ctx context.Context, names []string) ([]engine.Seen, error) {
	list, err := s.seen(ctx, names)
	return list, s.wrapRead(err)
}

func (s *store) seen(ctx context.Context, names []string) (list []engine.Seen, err error) {
	if err = s.w.files.check(); err != nil {
		return nil, err
	}
	read, err := s.reader(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		now := s.w.clock.micros()
		var column any
		err := read.QueryRowContext(ctx, name, s.w.clock.boot).Scan(&column)
		if err == sql.ErrNoRows {
			err = errAnotherBoot
		}
		if err != nil {
			return nil, err
		}
		k := keptOf(column)
		list = append(list, engine.Seen{Version: k.Version, Text: k.Text, Void: k.Void, Now: now})
	}
	return list, nil
}

func (s *store) reader(ctx context.Context) (_ *sql.Stmt, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.read == nil {
		s.read, err = s.db.PrepareContext(ctx, sqlRead)
	}
	return s.read, err
}

// wrap names the file.
func (s *store) wrap(err error) error {
	if err == nil || driver.Final(err) {
		return err
	}
	return fmt.Errorf("%s: %w", s.path, err)
}

// wrapRead is wrap for readers, which Close may have interrupted.
func (s *store) wrapRead(err error) error {
	if err != nil && s.life.Err() != nil {
		return driver.ErrClosed
	}
	return s.wrap(err)
}

// Swap makes the changes in one transaction, and a single one with one statement if it can.
func (s *store) Swap(ctx context.Context, changes []engine.Change) []engine.Outcome {
	list := make([]engine.Outcome, len(changes)) // an abandoned job still writes it
	j := s.w.newJob(ctx, func(j *job) (err error) {
		for i := range changes {
			if list[i], err = j.swap(changes[i]); err != nil {
				return err
			}
		}
		return nil
	})
	j.lone = len(changes) == 1
	if err := s.w.await(j); err != nil {
		return slices.Repeat([]engine.Outcome{{Err: s.wrap(err)}}, len(changes))
	}
	return list
}

// replace makes a change of what this process has written last, since a write finds out if it is there still, or else of what it reads.
// A change that misses is no error.
func (j *job) replace(c *engine.Change, now int64) (was, is engine.Kept, done bool, err error) {
	was, known := j.w.known[c.Name]
	if known {
		if is, done = c.Apply(was, now); done {
			done, err = j.w.put(c.Name, was, is)
		}
		if done || err != nil {
			return was, is, done, err
		}
		delete(j.w.known, c.Name)
	}
	if was, err = j.w.stmts.kept(c.Name, j.w.clock.boot); was.Version == 0 {
		c.Floor = max(c.Floor, was.Void+1)
	}
	if is, done = c.Apply(was, now); !done || err != nil {
		return was, is, false, err
	}
	if j.lone && was.Version == 0 {
		return was, is, false, errNotAlone
	}
	if done, err = j.w.put(c.Name, was, is); !done && err == nil {
		err = errNotAlone
	}
	return was, is, done, err
}

// swap makes a change.
func (j *job) swap(c engine.Change) (out engine.Outcome, err error) {
	c.Floor = max(c.Floor, wallMicros()) // also if the file is lost
	now := j.w.clock.micros()
	was, is, done, err := j.replace(&c, now)
	out = engine.Outcome{Done: done, Other: done && c.Ahead != engine.Whole && was.Version != c.Version}
	if out.Seen = (engine.Seen{Version: is.Version, Void: is.Void, Now: now}); !done || out.Other {
		out.Seen.Text = is.Text
	}
	if !done {
		return out, err
	}
	if j.wake = append(j.wake, placeKeys(c.Wake)...); c.Frees {
		j.wake = append(j.wake, c.Name)
	}
	if was.Version == 0 {
		j.added++
	}
	return out, err
}

// put writes what is kept instead of what was, if that is still so.
func (w *writer) put(name string, was, is engine.Kept) (done bool, err error) {
	var n int64
	if was.Version == 0 {
		n, err = w.stmts.insert.exec(is.Version, is.Until, is.Void, is.Text, name)
	} else {
		n, err = w.stmts.update.exec(is.Version, is.Until, is.Void, is.Text, name, was.Version, w.clock.boot)
	}
	if n > 0 {
		w.know(name, is)
	}
	return n > 0, err
}

// placeKey identifies a place in the queue of a name for the notifier.
func placeKey(name, owner string) string { return name + "\x00" + owner }

func placeKeys(list []engine.Wake) (keys []string) {
	for _, w := range list {
		keys = append(keys, placeKey(w.Name, w.Owner))
	}
	return keys
}

// Wake wakes places.
func (s *store) Wake(_ context.Context, list []engine.Wake) {
	s.notifier.notify(placeKeys(list), s.w.clock.now())
}

// Names returns names in the order of their bytes. Whoever lists them reads them: that finds out whether the file is still ours.
func (s *store) Names(ctx context.Context, prefix, after string, limit int) (names []string, err error) {
	var rows *sql.Rows
	if err = s.w.files.check(); err == nil {
		rows, err = s.db.QueryContext(ctx, sqlNames, prefix, after, s.w.clock.micros(), limit)
	}
	if err == nil {
		names, err = claims.ScanNames(rows)
	}
	if err == nil && len(names) == 0 {
		_, err = s.Read(ctx, []string{prefix})
		return nil, err
	}
	return names, s.wrapRead(err)
}

// Listen works on Linux. A waiter with a place is woken by that, another one by its name.
func (s *store) Listen(_ context.Context, w engine.Waiter, heard func(end string)) (stop func(), err error) {
	key := w.Name
	if w.Queue {
		key = placeKey(w.Name, w.Owner)
	}
	return s.notifier.watch(key, func() { heard(engine.EndOf(w.Owner)) })
}
