package zk

import (
	"context"
	"errors"
)

// result is one part of a multi's answer: the server's number for it. If one part fails
// nothing is done: those before it say 0, and those behind it that they were not tried.
type result int32

const (
	resultError    op     = -1
	resultNotTried result = -2
)

func appendMultiPart(b []byte, o op) []byte {
	return appendInt(appendBool(appendInt(b, int32(o)), false), -1)
}

func appendMultiEnd(b []byte) []byte { return appendInt(appendBool(appendInt(b, -1), true), -1) }

// results reads the answer to a multi: whether its parts failed.
func (d *decoder) results() []result {
	var list []result
	for !d.bad {
		o, end := op(d.int()), d.bool()
		code := d.int()
		switch {
		case end:
			return list
		case o == resultError:
			code = d.int()
		case o == opCreate:
			d.raw() // the path
		}
		list = append(list, result(code))
	}
	return nil
}

// CheckAll asks in one transaction, which a majority has to agree to, whether nodes
// exist: it proves that, and that the session lives. The index is that of one that does
// not exist, or -1.
func (c *Conn) CheckAll(ctx context.Context, paths []string) (missing int, err error) {
	k := newCall(opMulti, "")
	k.repeat = true
	for _, path := range paths {
		k.frame = appendMultiPart(k.frame, opCheck)
		k.frame = appendInt(appendText(k.frame, c.cfg.full(path)), -1)
	}
	k.frame = appendMultiEnd(k.frame)
	if err := c.do(ctx, k); err != nil {
		return -1, err
	}
	defer k.free()
	for i, r := range k.results {
		switch err := codeError(int32(r)); {
		case errors.Is(err, ErrNoNode):
			return i, nil
		case err != nil:
			return -1, k.error(err)
		}
	}
	return -1, nil
}

// Replace makes an ephemeral node and deletes another, in one transaction: both or
// neither. ErrNoNode: the other isn't there, or what would be the parent.
func (c *Conn) Replace(ctx context.Context, old, path string, data []byte) error {
	k := newCall(opMulti, path)
	k.frame = appendMultiPart(k.frame, opCreate)
	k.frame = c.appendNode(k.frame, path, data, Ephemeral)
	k.frame = appendMultiPart(k.frame, opDelete)
	k.frame = appendInt(appendText(k.frame, c.cfg.full(old)), -1)
	k.frame = appendMultiEnd(k.frame)
	if err := c.do(ctx, k); err != nil {
		return err
	}
	defer k.free()
	for _, r := range k.results {
		if r != 0 && r != resultNotTried {
			return k.error(codeError(int32(r)))
		}
	}
	return nil
}
