package zk

import "context"

// Create makes a node and returns its path, to which the server has added digits if it
// is sequential.
func (c *Conn) Create(ctx context.Context, path string, data []byte, mode Mode) (string, Stat, error) {
	k := c.creation(path, data, mode)
	if err := c.do(ctx, k); err != nil {
		return "", Stat{}, err
	}
	defer k.free()
	return c.cfg.below(k.created), k.stat, nil
}

func (c *Conn) creation(path string, data []byte, mode Mode) *call {
	k := newCall(mode.op(), path)
	k.frame = c.appendNode(k.frame, path, data, mode)
	return k
}

func (c *Conn) appendNode(b []byte, path string, data []byte, mode Mode) []byte {
	b = appendText(appendText(b, c.cfg.full(path)), data)
	return appendInt(appendACL(b, c.cfg.Private), int32(mode))
}

// Delete removes a node that has this version; −1: any.
func (c *Conn) Delete(ctx context.Context, path string, version int32) error {
	k := newCall(opDelete, path)
	k.frame = appendInt(appendText(k.frame, c.cfg.full(path)), version)
	return c.ask(ctx, k)
}

// ask is do for an answer that says no more.
func (c *Conn) ask(ctx context.Context, k *call) error {
	err := c.do(ctx, k)
	if err == nil {
		k.free()
	}
	return err
}

// Set changes the data of a node that has this version; −1: any.
func (c *Conn) Set(ctx context.Context, path string, data []byte, version int32) (Stat, error) {
	k := c.setting(path, data, version)
	if err := c.do(ctx, k); err != nil {
		return Stat{}, err
	}
	defer k.free()
	return k.stat, nil
}

func (c *Conn) setting(path string, data []byte, version int32) *call {
	k := newCall(opSetData, path)
	k.frame = appendText(appendText(k.frame, c.cfg.full(path)), data)
	k.frame = appendInt(k.frame, version)
	return k
}

// Sync lets what is read later know all that was done anywhere before. Without it a
// server may be behind.
func (c *Conn) Sync(ctx context.Context, path string) error {
	k := newCall(opSync, path)
	k.repeat = true
	k.frame = appendText(k.frame, c.cfg.full(path))
	return c.ask(ctx, k)
}

// Get reads a node.
func (c *Conn) Get(ctx context.Context, path string) ([]byte, Stat, error) {
	data, stat, _, err := c.get(ctx, path, nil)
	return data, stat, err
}

// GetW reads a node and calls f when it is changed or deleted, or the session ends:
// once. f must not block: nothing else is received before it returns.
func (c *Conn) GetW(ctx context.Context, path string, f func(Event)) ([]byte, Stat, *Watch, error) {
	return c.get(ctx, path, f)
}

func (c *Conn) get(ctx context.Context, path string, f func(Event)) ([]byte, Stat, *Watch, error) {
	k := c.reading(opGetData, path, kindData, f)
	w := k.watch
	if err := c.do(ctx, k); err != nil {
		return nil, Stat{}, nil, err
	}
	defer k.free()
	return k.data, k.stat, w, nil
}

// Children lists the names of a node's children, in no order, with the node's Stat.
func (c *Conn) Children(ctx context.Context, path string) ([]string, Stat, error) {
	names, stat, _, err := c.children(ctx, path, nil)
	return names, stat, err
}

// ChildrenW lists a node's children and calls f when one comes or goes, or the node is
// deleted, or the session ends: once, as in GetW.
func (c *Conn) ChildrenW(ctx context.Context, path string, f func(Event)) ([]string, Stat, *Watch, error) {
	return c.children(ctx, path, f)
}

func (c *Conn) children(ctx context.Context, path string, f func(Event)) ([]string, Stat, *Watch, error) {
	k := c.reading(opGetChildren2, path, kindChildren, f)
	w := k.watch
	if err := c.do(ctx, k); err != nil {
		return nil, Stat{}, nil, err
	}
	defer k.free()
	return k.children, k.stat, w, nil
}

// reading is a call that reads a node, and watches it if there is an f.
func (c *Conn) reading(o op, path string, what kind, f func(Event)) *call {
	k := newCall(o, path)
	k.repeat = true
	full := c.cfg.full(path)
	k.frame = appendBool(appendText(k.frame, full), f != nil)
	if f != nil {
		k.watch = &Watch{c: c, spot: spot{full, what}, f: f}
	}
	return k
}
