package zk

import (
	"context"
	"path"
)

// Entry is a node that was made in a queue, and the queue as it was right after that.
type Entry struct {
	Path     string
	Stat     Stat
	Children []string // names of all nodes in the queue, in no order
	Parent   Stat     // of the queue
}

// CreateAndList makes an ephemeral sequential node and lists its parent's children,
// which include it, in one round trip. If there is a Path despite an error the node
// exists: only the list is missing.
func (c *Conn) CreateAndList(ctx context.Context, name string, data []byte) (Entry, error) {
	create := c.creation(name, data, EphemeralSequential)
	list := c.reading(opGetChildren2, path.Dir(name), kindChildren, nil)
	if err := c.submit(ctx, create, list); err != nil {
		return Entry{}, err
	}
	if err := c.wait(ctx, create); err != nil {
		c.forget(list)
		return Entry{}, err
	}
	e := Entry{Path: c.cfg.below(create.created), Stat: create.stat}
	create.free()
	if err := c.wait(ctx, list); err != nil {
		return e, err
	}
	defer list.free()
	e.Children, e.Parent = list.children, list.stat
	return e, nil
}

// forget leaves a call whatever becomes of it.
func (c *Conn) forget(k *call) {
	if c.giveUp(k, context.Canceled) == nil {
		<-k.done
		k.free()
	}
}

// Node is a node that was read, or why it could not be.
type Node struct {
	Data []byte
	Stat Stat
	Err  error
}

// GetAll reads several nodes in one round trip, though not all at one moment.
func (c *Conn) GetAll(ctx context.Context, paths []string) ([]Node, error) {
	ks := make([]*call, len(paths))
	for i, p := range paths {
		ks[i] = c.reading(opGetData, p, kindData, nil)
	}
	if len(ks) == 0 {
		return nil, ctx.Err()
	}
	if err := c.submit(ctx, ks...); err != nil {
		return nil, err
	}
	nodes := make([]Node, len(ks))
	for i, k := range ks {
		if err := c.wait(ctx, k); err != nil {
			nodes[i].Err = err
			continue
		}
		nodes[i].Data, nodes[i].Stat = k.data, k.stat
		k.free()
	}
	return nodes, nil
}
