package zklock

import (
	"context"
	"errors"
	"slices"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/zk"
)

// Release deletes the nodes of an Owner. Without an answer the Owner keeps its claim, for the next Release. An Owner
// without a claim may belong to another process: its nodes are found by their names.
func (b *Backend) Release(ctx context.Context, h driver.Hold) error {
	if err := b.checkHold(h); err != nil {
		return err
	}
	had, err := b.release(ctx, h)
	switch {
	case err != nil && !had && tookNothing(err):
		return driver.Unsent(b.fail("release", h.Name, err))
	case err != nil:
		return b.fail("release", h.Name, err)
	case !had:
		return driver.ErrLost
	}
	return nil
}

// tookNothing reports whether an error says that a request was not sent, or that the servers refused it.
func tookNothing(err error) bool {
	return slices.ContainsFunc([]error{driver.ErrUnsent, zk.ErrNotSent, zk.ErrNoAuth, zk.ErrQuota, zk.ErrThrottled, zk.ErrAuthFailed}, func(e error) bool { return errors.Is(err, e) })
}

func (b *Backend) release(ctx context.Context, h driver.Hold) (had bool, err error) {
	c := b.claimOf(h)
	if c == nil {
		return b.releaseByName(ctx, h)
	}
	c.markReleased()
	had, err = c.deleteNodes(ctx)
	c.had = c.had || had
	if err != nil {
		return c.had, err
	}
	b.removeClaim(c)
	return c.had, nil
}

// releaseByName deletes the nodes of an Owner, whichever session they belong to. The end of the
// session that it uses says nothing about them: it continues in another one.
func (b *Backend) releaseByName(ctx context.Context, h driver.Hold) (had bool, err error) {
	for range maxTries {
		s, err := b.anySession(ctx)
		if err != nil {
			return had, driver.Unsent(err)
		}
		some, err := s.deleteByOwner(ctx, h)
		had = had || some
		if !sessionOver(err) {
			return had, err
		}
		s.awaitEnd(ctx)
	}
	return had, errSessions
}

func (s *session) deleteByOwner(ctx context.Context, h driver.Hold) (had bool, err error) {
	dirs := []string{""}
	if h.Mode == driver.Counted {
		dirs = []string{"/" + leasesNode, "/" + locksNode}
	}
	for _, dir := range dirs {
		dir = pathOf(h.Name) + dir
		l, _, err := s.listCommitted(ctx, dir)
		if err != nil {
			return had, err
		}
		for _, n := range l.nodes.ofOwner(h.Owner) {
			was, err := s.delete(ctx, dir+"/"+n.name)
			if err != nil {
				return had, err
			}
			had = had || was
		}
	}
	return had, nil
}
