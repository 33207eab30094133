package zk

import (
	"context"
	"path"
	"strings"
)

// Create makes a node and returns its path. The server adds digits to the path of a sequential
// node.
func (c *Conn) Create(ctx context.Context, path string, data []byte, mode Mode) (string, Stat, error) {
	a, err := c.do(ctx, c.createRPC(path, data, mode))
	if err != nil {
		return "", Stat{}, err
	}
	return c.cfg.relative(a.created), a.stat, nil
}

func (c *Conn) createRPC(path string, data []byte, mode Mode) *rpc {
	q := newRPC(mode.opcode(), path)
	q.frame = c.appendNode(q.frame, path, data, mode)
	return q
}

func (c *Conn) appendNode(b []byte, path string, data []byte, mode Mode) []byte {
	b = appendText(appendText(b, c.cfg.absolute(path)), data)
	return appendInt(appendACL(b, c.cfg.Private), int32(mode))
}

// CreateContainer makes a container. Servers delete no container that never had a child, so that one whose maker is
// cut off, or gives up, would stay for ever: in the same transaction a child comes and goes.
func (c *Conn) CreateContainer(ctx context.Context, path string) error {
	q := newRPC(opMulti, path)
	q.frame = appendMultiPart(q.frame, opCreateContainer)
	q.frame = c.appendNode(q.frame, path, nil, Container)
	q.frame = appendMultiPart(q.frame, opCreate)
	q.frame = c.appendNode(q.frame, path+"/first", nil, Ephemeral)
	q.frame = appendMultiPart(q.frame, opDelete)
	q.frame = appendInt(appendText(q.frame, c.cfg.absolute(path+"/first")), -1)
	q.frame = appendMultiEnd(q.frame)
	return c.doMulti(ctx, path, q)
}

// doMulti makes a transaction, and returns the error of the part that failed.
func (c *Conn) doMulti(ctx context.Context, path string, q *rpc) error {
	a, err := c.do(ctx, q)
	if err != nil {
		return err
	}
	for _, r := range a.results {
		if r != 0 && r != multiNotTried {
			return &opError{opMulti, path, codeError(int32(r))}
		}
	}
	return nil
}

// Delete deletes a node if it has this version; -1 means any.
func (c *Conn) Delete(ctx context.Context, path string, version int32) error {
	q := newRPC(opDelete, path)
	q.frame = appendInt(appendText(q.frame, c.cfg.absolute(path)), version)
	_, err := c.do(ctx, q)
	return err
}

// Set changes the data of a node if it has this version; -1 means any.
func (c *Conn) Set(ctx context.Context, path string, data []byte, version int32) (Stat, error) {
	q := newRPC(opSetData, path)
	q.frame = appendText(appendText(q.frame, c.cfg.absolute(path)), data)
	q.frame = appendInt(q.frame, version)
	a, err := c.do(ctx, q)
	return a.stat, err
}

// Commit makes a write that changes nothing: later reads see everything that any server had committed before. A sync of ZooKeeper
// does less: a leader answers it before it shows what a follower shows already, and so does one that is cut off from the majority
// and does not know yet.
func (c *Conn) Commit(ctx context.Context) error {
	_, err := c.do(ctx, newCommit(""))
	return err
}

func newCommit(path string) *rpc {
	q := newEmptyWrite()
	q.path, q.idempotent = path, true
	return q
}

// Get reads a node.
func (c *Conn) Get(ctx context.Context, path string) ([]byte, Stat, error) {
	a, err := c.do(ctx, c.readRPC(opGetData, path, nil))
	return a.data, a.stat, err
}

// GetW reads a node and calls f once, when the node is changed or deleted or the session ends. f
// must not block: nothing else is received before it returns.
func (c *Conn) GetW(ctx context.Context, path string, f func(Event)) ([]byte, Stat, *Watch, error) {
	w := c.newWatch(path, kindData, f)
	a, err := c.do(ctx, c.readRPC(opGetData, path, w))
	if err != nil {
		return nil, Stat{}, nil, err
	}
	return a.data, a.stat, w, nil
}

// Children returns the names of a node's children, unordered, and the node's Stat.
func (c *Conn) Children(ctx context.Context, path string) ([]string, Stat, error) {
	a, err := c.do(ctx, c.readRPC(opGetChildren2, path, nil))
	return a.children, a.stat, err
}

// ChildrenW lists a node's children and calls f once, as GetW does, when a child is created or
// deleted, or the node is deleted, or the session ends.
func (c *Conn) ChildrenW(ctx context.Context, path string, f func(Event)) ([]string, Stat, *Watch, error) {
	w := c.newWatch(path, kindChildren, f)
	a, err := c.do(ctx, c.readRPC(opGetChildren2, path, w))
	if err != nil {
		return nil, Stat{}, nil, err
	}
	return a.children, a.stat, w, nil
}

func (c *Conn) newWatch(path string, kind watchKind, f func(Event)) *Watch {
	return &Watch{table: &c.watches, key: watchKey{c.cfg.absolute(path), kind}, f: f}
}

// readRPC reads a node, and sets w unless it is nil.
func (c *Conn) readRPC(o opcode, path string, w *Watch) *rpc {
	q := newRPC(o, path)
	q.idempotent, q.watch = true, w
	q.frame = appendBool(appendText(q.frame, c.cfg.absolute(path)), w != nil)
	return q
}

// Created is a node that was made, and its parent as it was right after that.
type Created struct {
	Path     string
	Stat     Stat
	Children []string // names of all nodes below the parent, unordered
	Parent   Stat
}

// CreateAndList makes an ephemeral sequential node and lists its parent's children, which include
// it, in one round trip. If Path is set despite an error, the node exists and only the list is
// missing.
func (c *Conn) CreateAndList(ctx context.Context, name string, data []byte) (Created, error) {
	var n Created
	create := c.createRPC(name, data, EphemeralSequential)
	list, err := c.thenList(ctx, create, path.Dir(name), func(a rpcAnswer) {
		n.Path, n.Stat = c.cfg.relative(a.created), a.stat
	})
	if n.Path != "" && !strings.HasPrefix(n.Path, name) { // nothing that a server says
		return Created{}, &opError{opCreate2, name, ErrConnectionLoss}
	}
	n.Children, n.Parent = list.children, list.stat
	return n, err
}

// CommitAndList lists a node's children after a Commit, in one round trip.
func (c *Conn) CommitAndList(ctx context.Context, path string) ([]string, Stat, error) {
	list, err := c.thenList(ctx, newCommit(path), path, func(rpcAnswer) {})
	return list.children, list.stat, err
}

// thenList sends a request and a listing right behind it. It passes the first answer to done, and
// returns the second.
func (c *Conn) thenList(ctx context.Context, first *rpc, dir string, done func(rpcAnswer)) (rpcAnswer, error) {
	list := c.readRPC(opGetChildren2, dir, nil)
	if err := c.submit(ctx, first, list); err != nil {
		return rpcAnswer{}, err
	}
	listed, listErr := c.await(ctx, list) // both answers wake this goroutine once
	a, err := c.await(ctx, first)
	if err != nil {
		return rpcAnswer{}, err
	}
	done(a)
	return listed, listErr
}

// Node is a node that was read, or why it could not be.
type Node struct {
	Data []byte
	Stat Stat
	Err  error
}

// GetAll reads several nodes in one round trip, though not all at one moment.
func (c *Conn) GetAll(ctx context.Context, paths []string) ([]Node, error) {
	if len(paths) == 0 {
		return nil, ctx.Err()
	}
	qs := make([]*rpc, len(paths))
	for i, p := range paths {
		qs[i] = c.readRPC(opGetData, p, nil)
	}
	if err := c.submit(ctx, qs...); err != nil {
		return nil, err
	}
	nodes := make([]Node, len(qs))
	for i, q := range qs {
		a, err := c.await(ctx, q)
		nodes[i] = Node{a.data, a.stat, err}
	}
	return nodes, nil
}

// CheckAll checks in one transaction that nodes exist. It needs a majority of the servers, so it
// also proves that the session lives. If one of them doesn't exist, or is refused, it returns its index and why; an index of
// -1 comes with an error of the whole, or with none.
func (c *Conn) CheckAll(ctx context.Context, paths []string) (failed int, err error) {
	q := newRPC(opMulti, "")
	q.idempotent = true
	for _, path := range paths {
		q.frame = appendMultiPart(q.frame, opCheck)
		q.frame = appendInt(appendText(q.frame, c.cfg.absolute(path)), -1)
	}
	q.frame = appendMultiEnd(q.frame)
	a, err := c.do(ctx, q)
	if err != nil {
		return -1, err
	}
	if len(a.results) != len(paths) {
		return -1, &opError{opMulti, "", ErrConnectionLoss} // nothing that a server says
	}
	for i, r := range a.results {
		if r != 0 { // those behind it were not tried
			return i, &opError{opMulti, paths[i], codeError(int32(r))}
		}
	}
	return -1, nil
}

// Replace makes an ephemeral node and deletes another, in one transaction. ErrNoNode means that the
// other node, or the new one's parent, doesn't exist; ErrBadVersion that the other one's data has another version.
func (c *Conn) Replace(ctx context.Context, old string, version int32, path string, data []byte) error {
	q := newRPC(opMulti, path)
	q.frame = appendMultiPart(q.frame, opCreate)
	q.frame = c.appendNode(q.frame, path, data, Ephemeral)
	q.frame = appendMultiPart(q.frame, opDelete)
	q.frame = appendInt(appendText(q.frame, c.cfg.absolute(old)), version)
	q.frame = appendMultiEnd(q.frame)
	return c.doMulti(ctx, path, q)
}
