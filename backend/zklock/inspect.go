package zklock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/zk"
)

// Inspect describes a lock. The Meta of Curator's holders is the content of their nodes, usually
// the address of their host. The Owner of a node without a UUID is its name.
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Info, error) {
	if err := b.checkHold(driver.Hold{Name: name, Mode: driver.Exclusive}); err != nil {
		return driver.Info{}, err
	}
	_, state, err := b.readState(ctx, name)
	if err != nil {
		return driver.Info{}, b.fail("inspect", name, b.firstCall(err))
	}
	info := driver.Info{Name: name, Holders: holdersOf(state.holders), Waiters: holdersOf(state.waiters)}
	info.WaiterCount = len(info.Waiters)
	if len(state.holders) > 0 {
		info.Mode = state.holders[0].held
	}
	if info.Mode == driver.Counted {
		for _, n := range state.holders {
			info.Limit = max(info.Limit, n.limit)
		}
	}
	return info, nil
}

// holdersOf converts nodes for Inspect. Only the server's clock could say how long they have
// existed, and clients can't read it.
func holdersOf(nodes []stateNode) []driver.Holder {
	var holders []driver.Holder
	for _, n := range nodes {
		holders = append(holders, driver.Holder{
			Owner: n.owner, Mode: n.held, Held: -1, Left: -1, Meta: decodeData(n.node, n.data).Meta, Foreign: n.mode == foreign,
		})
	}
	return holders
}

// Revoke asks a holder for its lock by writing to its node, as Curator's Revoker does. It also
// works for Curator's mutexes that were made revocable.
func (b *Backend) Revoke(ctx context.Context, h driver.Hold) error {
	if err := b.checkHold(h); err != nil {
		return err
	}
	err := b.revoke(ctx, h)
	if errors.Is(err, driver.ErrLost) {
		return err
	}
	if err != nil {
		return b.fail("revoke", h.Name, err)
	}
	return nil
}

func (b *Backend) revoke(ctx context.Context, h driver.Hold) error {
	s, state, err := b.readState(ctx, h.Name)
	if err != nil {
		return err
	}
	n, is := state.holder(h.Owner)
	if !is {
		return driver.ErrLost
	}
	if n.mode == foreign || !decodeData(n.node, n.data).Revocable {
		return fmt.Errorf("%w: the holder of %s is not revocable", driver.ErrUnsupported, driver.Quote(h.Name))
	}
	_, err = s.conn.Set(ctx, n.path, []byte(revokeData), -1)
	if errors.Is(err, zk.ErrNoNode) {
		return driver.ErrLost
	}
	return err
}

// lockState holds the nodes of a lock in their order.
type lockState struct{ holders, waiters []stateNode }

type stateNode struct {
	node
	path string
	held driver.Mode // in which the Owner holds or waits
	data []byte
}

// readState reads the nodes of a lock, first their names and then their data. It leaves out nodes
// that are gone by then.
func (b *Backend) readState(ctx context.Context, name string) (*session, lockState, error) {
	s, err := b.anySession(ctx)
	if err != nil {
		return nil, lockState{}, err
	}
	path := pathOf(name)
	all, err := readContents(ctx, s.listCommitted, path)
	if err != nil {
		return nil, lockState{}, err
	}
	state := all.state(path)
	if err := s.read(ctx, &state.holders); err != nil {
		return nil, lockState{}, err
	}
	return s, state, s.read(ctx, &state.waiters)
}

// state separates holders from waiters. The first in the queue counts as a holder: it holds, or
// will with its next attempt. Nodes of other recipes count as mutexes.
func (c contents) state(path string) lockState {
	var state lockState
	for i, n := range c.nodes {
		one := stateNode{node: n, path: path + "/" + n.name, held: cmp.Or(n.mode, driver.Exclusive)}
		if _, waits := c.nodes.blocker(i, n.mode); waits {
			state.waiters = append(state.waiters, one)
		} else {
			state.holders = append(state.holders, one)
		}
	}
	for i, n := range c.leases {
		if limit := c.leases.limit(); limit == 0 && len(c.locks.ofOwner(n.owner)) == 0 || i < limit {
			state.holders = append(state.holders, stateNode{node: n, path: path + "/" + leasesNode + "/" + n.name, held: driver.Counted})
		}
	}
	for _, n := range c.locks {
		if _, holds := state.holder(n.owner); !holds {
			state.waiters = append(state.waiters, stateNode{node: n, path: path + "/" + locksNode + "/" + n.name, held: driver.Counted})
		}
	}
	return state
}

// holder returns the node by which an Owner holds.
func (l lockState) holder(owner string) (stateNode, bool) {
	for _, n := range l.holders {
		if n.owner == owner {
			return n, true
		}
	}
	return stateNode{}, false
}

// read reads the data of nodes, and removes those that are gone.
func (s *session) read(ctx context.Context, nodes *[]stateNode) error {
	paths := make([]string, len(*nodes))
	for i, n := range *nodes {
		paths[i] = n.path
	}
	answers, err := s.conn.GetAll(ctx, paths)
	if err != nil {
		return err
	}
	var there []stateNode
	for i, a := range answers {
		switch {
		case errors.Is(a.Err, zk.ErrNoNode):
		case a.Err != nil:
			return a.Err
		default:
			n := (*nodes)[i]
			n.data = a.Data
			there = append(there, n)
		}
	}
	*nodes = there
	return nil
}

// List finds the locks that are held or waited for. It visits all nodes below the chroot that may
// be a lock with the prefix or lie above one, so it is meant for people and not for programs.
func (b *Backend) List(ctx context.Context, prefix string, yield func(name string) bool) error {
	if b.life.Err() != nil {
		return driver.ErrClosed
	}
	s, err := b.anySession(ctx)
	if err == nil {
		err = s.conn.Commit(ctx)
	}
	if err == nil {
		err = s.walk(ctx, prefix, yield)
	}
	if err != nil {
		return b.fail("list", prefix, err)
	}
	return nil
}

func (s *session) walk(ctx context.Context, prefix string, yield func(name string) bool) error {
	for paths := []string{""}; len(paths) > 0; {
		path := paths[len(paths)-1]
		paths = paths[:len(paths)-1]
		children, _, err := s.conn.Children(ctx, cmp.Or(path, "/"))
		if errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrNoAuth) {
			continue // it is gone, or hidden from this user
		}
		if err != nil {
			return err
		}
		if name, ok := nameOf(path); ok && path != "" && strings.HasPrefix(name, prefix) {
			used, err := s.hasNodes(ctx, path, children)
			if err != nil || used && !yield(name) {
				return err
			}
		}
		for _, child := range children {
			if mayMatch(path, child, prefix) {
				paths = append(paths, path+"/"+child)
			}
		}
	}
	return nil
}

// hasNodes reports whether a path with these children is a lock in use.
func (s *session) hasNodes(ctx context.Context, path string, children []string) (bool, error) {
	l := readListing(children)
	if len(l.nodes) > 0 || !l.hasLocks && !l.hasLeases {
		return len(l.nodes) > 0, nil
	}
	all, err := readContents(ctx, s.list, path)
	return len(all.leases)+len(all.locks) > 0, err
}

// mayMatch reports whether a child is not part of the lock at path, and itself or a descendant may
// have the prefix.
func mayMatch(path, child, prefix string) bool {
	if path != "" && isLockNode(child) || path == "" && child == reserved {
		return false
	}
	name, ok := nameOf(path + "/" + child)
	return ok && (strings.HasPrefix(name, prefix) || strings.HasPrefix(prefix, name+"/"))
}
