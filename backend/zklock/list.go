package zklock

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/zk"
)

// List finds the locks that are held or waited for by walking through all nodes below
// the chroot that may be, or have below them, a lock with the prefix: it is for people
// and not for programs. Names that differ from paths in more than their slashes are
// shown as names.
func (b *Backend) List(ctx context.Context, prefix string, yield func(name string) bool) error {
	if b.isClosed() {
		return driver.ErrClosed
	}
	s, err := b.any(ctx)
	if err == nil {
		err = s.conn.Sync(ctx, "/") // a server may be behind
	}
	if err == nil {
		w := &walk{s: s, prefix: prefix, yield: yield}
		_, err = w.below(ctx, "")
	}
	if err != nil {
		return b.fail("list", prefix, err)
	}
	return nil
}

type walk struct {
	s      *session
	prefix string
	yield  func(name string) bool
}

// below looks at a path and all below it; more: yield wants it.
func (w *walk) below(ctx context.Context, path string) (more bool, err error) {
	children, _, err := w.s.conn.Children(ctx, cmp.Or(path, "/"))
	if errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrNoAuth) {
		return true, nil // gone meanwhile, or not ours to see
	}
	if err != nil {
		return false, err
	}
	if path != "" {
		if more, err := w.show(ctx, path, children); err != nil || !more {
			return false, err
		}
	}
	for _, child := range children {
		if !w.mayLead(path, child) {
			continue
		}
		if more, err := w.below(ctx, path+"/"+child); err != nil || !more {
			return false, err
		}
	}
	return true, nil
}

// mayLead: the child is no part of the lock at path, and it, or what is below it, may
// have the prefix.
func (w *walk) mayLead(path, child string) bool {
	if path != "" && isOurs(child) || path == "" && child == reserved {
		return false
	}
	name, ok := nameOf(path + "/" + child)
	return ok && (strings.HasPrefix(name, w.prefix) || strings.HasPrefix(w.prefix, name+"/"))
}

// show yields the name of a path if it is a lock in use.
func (w *walk) show(ctx context.Context, path string, children []string) (more bool, err error) {
	name, ok := nameOf(path)
	if !ok || !strings.HasPrefix(name, w.prefix) {
		return true, nil
	}
	f := readFamily(children)
	used := len(f.row) > 0
	if !used && (f.locks || f.leases) {
		seen, err := w.s.survey(ctx, path)
		if err != nil {
			return false, err
		}
		used = len(seen.leases)+len(seen.locks) > 0
	}
	return !used || w.yield(name), nil
}
