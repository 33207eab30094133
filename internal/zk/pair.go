package zk

import "context"

// SyncAndList lists a node's children as Children does, with all that was done anywhere
// before: in one round trip.
func (c *Conn) SyncAndList(ctx context.Context, path string) ([]string, Stat, error) {
	sync := newCall(opSync, path)
	sync.repeat = true
	sync.frame = appendText(sync.frame, c.cfg.full(path))
	return c.andList(ctx, sync, path, func(*call) {})
}

// SetAndList changes a node's data as Set does, and then lists the children of another
// node, in one round trip. If there is a Stat of the first despite an error it was changed:
// only the list is missing.
func (c *Conn) SetAndList(ctx context.Context, path string, data []byte, version int32, parent string) (set Stat, children []string, err error) {
	k := c.setting(path, data, version)
	children, _, err = c.andList(ctx, k, parent, func(k *call) { set = k.stat })
	return set, children, err
}

// andList asks for a list right after a call, and hands over the answer to that.
func (c *Conn) andList(ctx context.Context, first *call, path string, then func(*call)) ([]string, Stat, error) {
	list := c.reading(opGetChildren2, path, kindChildren, nil)
	if err := c.submit(ctx, first, list); err != nil {
		return nil, Stat{}, err
	}
	if err := c.wait(ctx, first); err != nil {
		c.forget(list)
		return nil, Stat{}, err
	}
	then(first)
	first.free()
	if err := c.wait(ctx, list); err != nil {
		return nil, Stat{}, err
	}
	defer list.free()
	return list.children, list.stat, nil
}
