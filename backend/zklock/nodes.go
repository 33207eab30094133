package zklock

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
	"github.com/distlock/distlock/internal/zk"
)

// list reads the nodes below a path, which need not exist.
func (s *session) list(ctx context.Context, path string) (listing, zk.Stat, error) {
	children, stat, err := s.conn.Children(ctx, path)
	return existing(children, stat, err)
}

// listCommitted is list behind a write, which a majority has agreed to: it shows all that another server had answered before, and a
// node that it does not show was not made.
func (s *session) listCommitted(ctx context.Context, path string) (listing, zk.Stat, error) {
	children, stat, err := s.conn.CommitAndList(ctx, path)
	return existing(children, stat, err)
}

func existing(children []string, stat zk.Stat, err error) (listing, zk.Stat, error) {
	if errors.Is(err, zk.ErrNoNode) {
		err = nil
	}
	return readListing(children), stat, err
}

// position returns the index of a node of the claim. It returns an error if the path's sequence
// numbers are used up.
func (c *claim) position(l nodeList, path string) (int, error) {
	me := l.index(nodeName(path))
	if me < 0 {
		return 0, errNodeGone
	}
	for _, n := range l {
		if n.exhausted() {
			return 0, exhaustedError(parentOf(path), n)
		}
	}
	return me, nil
}

// lister is list or listCommitted of a session.
type lister func(ctx context.Context, path string) (listing, zk.Stat, error)

// contents are all nodes of a lock.
type contents struct{ nodes, leases, locks nodeList }

func readContents(ctx context.Context, list lister, path string) (contents, error) {
	var lists [3]nodeList
	var errs [3]error
	var wg wait.Group
	for i, end := range []string{"", "/" + leasesNode, "/" + locksNode} {
		wg.Go(func() {
			l, _, err := list(ctx, path+end)
			lists[i], errs[i] = l.nodes, err
		})
	}
	wg.Wait()
	return contents{lists[0], lists[1], lists[2]}, errors.Join(errs[:]...)
}

// create makes a node of the claim and its missing parents. It lists the siblings in the same
// round trip. If the path is set despite an error, the node exists. Otherwise, unless the error shows that there is none, the
// claim becomes unknown.
func (c *claim) create(ctx context.Context, prefix string, data []byte) (zk.Created, error) {
	for {
		n, err := c.s.conn.CreateAndList(ctx, prefix, data)
		switch {
		case err == nil:
			return n, nil
		case errors.Is(err, zk.ErrNoNode) && n.Path == "":
			// The servers may delete the empty parent again before the next attempt.
			if err = c.s.makeContainer(ctx, parentOf(prefix)); err == nil {
				continue
			}
			return n, err
		}
		c.unknown = !notApplied(err) && n.Path == ""
		return n, err
	}
}

// makeContainer makes a node that the servers delete once it has become empty, and those above it.
func (s *session) makeContainer(ctx context.Context, path string) error {
	for {
		err := s.conn.CreateContainer(ctx, path)
		switch i := strings.LastIndexByte(path, '/'); {
		case err == nil, errors.Is(err, zk.ErrNodeExists):
			return nil
		case errors.Is(err, zk.ErrNoNode) && i > 0:
			if err := s.makeContainer(ctx, path[:i]); err != nil {
				return err
			}
		case errors.Is(err, zk.ErrNoNode):
			return zk.ErrNoChroot
		default:
			return err
		}
	}
}

// rewrite writes the data of the claim's node. It preserves a revocation. The transaction is a
// fence.
func (c *claim) rewrite(ctx context.Context) (fence int64, err error) {
	for {
		stat, err := c.s.conn.Set(ctx, c.node, c.data, c.version)
		switch {
		case err == nil:
			c.version = stat.Version
			return stat.Mzxid, nil
		case errors.Is(err, zk.ErrNoNode):
			return 0, errNodeGone
		case !errors.Is(err, zk.ErrBadVersion):
			return 0, err
		}
		if err := c.reread(ctx); err != nil {
			return 0, err
		}
	}
}

// replace replaces the claim's node by one with the claim's data. It preserves a revocation.
func (c *claim) replace(ctx context.Context, path string) error {
	for {
		err := c.s.conn.Replace(ctx, c.node, c.version, path, c.data)
		if err == nil {
			c.node, c.version = path, 0
		}
		if !errors.Is(err, zk.ErrBadVersion) {
			return err
		}
		if err := c.reread(ctx); err != nil {
			return err
		}
	}
}

// reread reads the version of the claim's node, and its data if that is a revocation.
func (c *claim) reread(ctx context.Context) error {
	found, stat, err := c.s.conn.Get(ctx, c.node)
	if errors.Is(err, zk.ErrNoNode) {
		return errNodeGone
	}
	if err != nil {
		return err
	}
	c.version = stat.Version
	if string(found) == revokeData {
		c.data = found
	}
	return nil
}

// unknownVersion is the version of no data: the next write reads it, and whether the lock was revoked.
const unknownVersion = -2

// resolve finds the nodes of an unknown claim. It deletes nodes of the Owner that belong to an
// older session.
func (c *claim) resolve(ctx context.Context) error {
	if !c.unknown {
		return nil
	}
	node, m, err := c.find(ctx, c.dir())
	if err != nil {
		return err
	}
	if c.node = node; node != "" {
		c.mode = m // a downgrade may have succeeded
		c.version = unknownVersion
	}
	if c.mode == driver.Counted {
		if c.queueNode, _, err = c.find(ctx, c.queueDir()); err != nil {
			return err
		}
	}
	c.unknown = false
	return nil
}

// find returns the path of the Owner's node below dir, or "". A create that was sent to another
// server may still be on its way, and this one may be cut off: so find commits a write first.
func (c *claim) find(ctx context.Context, dir string) (path string, m driver.Mode, err error) {
	l, _, err := c.s.listCommitted(ctx, dir)
	if err != nil {
		return "", 0, err
	}
	for _, n := range l.nodes.ofOwner(c.owner) {
		candidate := dir + "/" + n.name
		switch _, stat, err := c.s.conn.Get(ctx, candidate); {
		case errors.Is(err, zk.ErrNoNode):
		case err != nil:
			return "", 0, err
		case path == "" && stat.EphemeralOwner == c.s.conn.Session():
			path, m = candidate, n.mode
		default: // of an older session, or of a create that arrived late, after another one
			if _, err := c.s.delete(ctx, candidate); err != nil {
				return "", 0, err
			}
		}
	}
	return path, m, nil
}

// deleteNodes deletes the claim's nodes, and reports whether there were any.
func (c *claim) deleteNodes(ctx context.Context) (had bool, err error) {
	if err := c.resolve(ctx); err != nil && !sessionOver(err) {
		return false, err
	}
	for _, node := range []*string{&c.node, &c.queueNode} {
		if *node == "" {
			continue
		}
		was, err := c.s.deleteOwn(ctx, *node)
		if err != nil {
			return had, err
		}
		had, *node = had || was, ""
	}
	return had, nil
}

// deleteOwn deletes a node of this session, which ends with it. It reports whether the node
// existed.
func (s *session) deleteOwn(ctx context.Context, path string) (bool, error) {
	had, err := s.delete(ctx, path)
	if sessionOver(err) {
		return false, nil
	}
	return had, err
}

// delete deletes a node of any session. It reports whether the node existed.
func (s *session) delete(ctx context.Context, path string) (bool, error) {
	err := s.conn.Delete(ctx, path, -1)
	if errors.Is(err, zk.ErrNoNode) {
		return false, nil
	}
	return err == nil, err
}

const deleteRetry = 100 * time.Millisecond

// deleteInBackground deletes a node of this session. It tries until there is an answer, whatever the servers refuse meanwhile.
func (s *session) deleteInBackground(path string) {
	b := s.b
	b.goTask(func() {
		for try := 0; b.life.Err() == nil; try++ {
			if _, err := s.deleteOwn(b.life, path); err == nil {
				return
			}
			wait.Sleep(b.life, wait.Backoff(try, deleteRetry, 10*deleteRetry))
		}
	})
}
