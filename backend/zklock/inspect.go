package zklock

import (
	"context"
	"errors"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/zk"
)

// Inspect describes a lock. Of those that were taken by Curator it shows what is in their
// nodes, mostly the address of their host. The Owner of a node without a UUID is its name.
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Info, error) {
	if err := b.check(driver.Hold{Name: name, Mode: driver.Exclusive}); err != nil {
		return driver.Info{}, err
	}
	s, err := b.any(ctx)
	if err != nil {
		return driver.Info{}, b.fail("inspect", name, err)
	}
	seen, err := b.see(ctx, s, name)
	if err != nil {
		return driver.Info{}, b.fail("inspect", name, err)
	}
	info := driver.Info{Name: name, Holders: told(seen.holders), Waiters: told(seen.waiters)}
	info.WaiterCount = len(info.Waiters)
	if len(seen.holders) > 0 {
		info.Mode = seen.holders[0].kind.mode()
	}
	if info.Mode == driver.Counted {
		for _, n := range seen.holders {
			info.Limit = max(info.Limit, n.limit)
		}
	}
	return info, nil
}

// sight is who holds and who waits, in their order.
type sight struct{ holders, waiters []seen }

// seen is a node with its data.
type seen struct {
	node
	path string
	mode driver.Mode
	data []byte
}

// see reads all of a lock: names first, and then data. What is gone by then is left out.
func (b *Backend) see(ctx context.Context, s *session, name string) (sight, error) {
	path := pathOf(name)
	all, err := s.survey(ctx, path)
	if err != nil {
		return sight{}, err
	}
	found := all.sight(path)
	if err := s.read(ctx, &found.holders); err != nil {
		return sight{}, err
	}
	return found, s.read(ctx, &found.waiters)
}

// sight parts those who hold from those who wait. The first in line holds, or will as
// soon as it asks.
func (v survey) sight(path string) sight {
	var found sight
	for i, n := range v.row {
		one := seen{node: n, path: path + "/" + n.name, mode: n.kind.mode()}
		if _, waits := v.row.blocker(i, n.kind); waits || n.kind == foreignKind {
			found.waiters = append(found.waiters, one)
		} else {
			found.holders = append(found.holders, one)
		}
	}
	for i, n := range v.leases {
		if limit := v.leases.limit(); limit == 0 && len(v.locks.of(n.owner)) == 0 || i < limit {
			found.holders = append(found.holders, seen{node: n, path: path + "/" + leasesNode + "/" + n.name, mode: driver.Counted})
		}
	}
	for _, n := range v.locks {
		if _, holds := found.holder(n.owner); !holds {
			found.waiters = append(found.waiters, seen{node: n, path: path + "/" + locksNode + "/" + n.name, mode: driver.Counted})
		}
	}
	return found
}

// limit is how many permits there are; 0: nobody told.
func (r row) limit() int {
	limit := 0
	for _, n := range r {
		limit = max(limit, n.limit)
	}
	return limit
}

// holder is the node by which an Owner holds.
func (f sight) holder(owner string) (seen, bool) {
	for _, n := range f.holders {
		if n.owner == owner {
			return n, true
		}
	}
	return seen{}, false
}

// read fetches the data of nodes, and leaves out those that are gone.
func (s *session) read(ctx context.Context, nodes *[]seen) error {
	paths := make([]string, len(*nodes))
	for i, n := range *nodes {
		paths[i] = n.path
	}
	answers, err := s.conn.GetAll(ctx, paths)
	if err != nil {
		return err
	}
	var there []seen
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

// told are nodes as Inspect tells of them. How long they have been there only the
// server's clock could tell, for which it can't be asked.
func told(nodes []seen) []driver.Holder {
	var holders []driver.Holder
	for _, n := range nodes {
		holders = append(holders, driver.Holder{
			Owner: n.owner, Mode: n.mode, Held: -1, Left: -1, Meta: readNote(n.node, n.data).Meta,
		})
	}
	return holders
}
