package zklock

import (
	"context"
	"errors"
	"time"

	"github.com/distlock/distlock/driver"
)

// Release deletes the nodes of an Owner. What it can't do before ctx ends is done in
// the background, unless the session ends first. An Owner that has no place here may be
// another process's: its nodes are looked for by their names.
func (b *Backend) Release(ctx context.Context, h driver.Hold) error {
	if err := b.check(h); err != nil {
		return err
	}
	had, err := b.release(ctx, h)
	switch {
	case err != nil:
		return b.fail("release", h.Name, err)
	case !had:
		return driver.ErrLost
	}
	return nil
}

func (b *Backend) release(ctx context.Context, h driver.Hold) (had bool, err error) {
	p := b.placeOf(h)
	if p == nil {
		return b.force(ctx, h)
	}
	p.leave()
	had, err = p.clear(ctx)
	if err == nil {
		b.drop(p)
		return had, nil
	}
	b.drop(p)
	b.sweep(p.s, func() error {
		_, err := p.clear(b.life)
		return err
	})
	return false, err
}

// force deletes the nodes of an Owner, whose ever they are. The session that it uses for that
// may end meanwhile, which ends nothing of the Owner's.
func (b *Backend) force(ctx context.Context, h driver.Hold) (had bool, err error) {
	for range maxTries {
		s, err := b.any(ctx)
		if err != nil {
			return had, err
		}
		some, err := s.force(ctx, h)
		had = had || some
		if !sessionOver(err) {
			return had, err
		}
		s.outlive(ctx)
	}
	return had, errSessions
}

var errSessions = errors.New("one session after the other has ended")

func (s *session) force(ctx context.Context, h driver.Hold) (had bool, err error) {
	dirs := []string{""}
	if h.Mode == driver.Counted {
		dirs = []string{"/" + leasesNode, "/" + locksNode}
	}
	for _, dir := range dirs {
		dir = pathOf(h.Name) + dir
		f, _, err := s.listNow(ctx, dir)
		if err != nil {
			return had, err
		}
		for _, n := range f.row.of(h.Owner) {
			was, err := s.removeAny(ctx, dir+"/"+n.name)
			if err != nil {
				return had, err
			}
			had = had || was
		}
	}
	return had, nil
}

// sweep cleans in the background, again and again until that is done or the session over.
func (b *Backend) sweep(s *session, clean func() error) {
	b.begin(func() {
		for b.life.Err() == nil && !s.over() {
			if err := clean(); err == nil || b.opts.never(err) != "" {
				return
			}
			b.pause(sweepPause)
		}
	})
}

const sweepPause = 100 * time.Millisecond

// pause waits for d, or until the backend is closed.
func (b *Backend) pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-b.life.Done():
	}
}
