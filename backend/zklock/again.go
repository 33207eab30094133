package zklock

import (
	"context"
	"errors"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/zk"
)

// again grants a hold anew: its fence is the transaction that writes its node's data
// again, which also proves that it is there.
func (a *attempt) again(ctx context.Context) (driver.Grant, error) {
	p := a.p
	if string(p.data) != revokeData {
		p.data = writeNote(a.r.Meta, a.r.OnRevoke != nil)
	}
	fence, line, err := p.rewrite(ctx)
	if err != nil {
		return driver.Grant{}, err
	}
	return a.grant(uint64(fence), p.waitedFor(line))
}

// line is where those stand who wait for the place's end.
func (p *place) line() string {
	if p.mode == driver.Counted {
		return p.queue()
	}
	return p.path
}

// waitedFor: in the line is somebody else.
func (p *place) waitedFor(line row) bool {
	if p.mode == driver.Counted {
		return len(line)-len(line.of(p.owner)) > 0
	}
	me := line.index(base(p.node))
	return me < 0 || line.waits(me, kindOf(p.mode))
}

// rewrite writes the data of the place's node, and then looks at the line. It does not
// wipe what somebody else has written there, who asks for the lock. The fence is the
// transaction.
func (p *place) rewrite(ctx context.Context) (fence int64, line row, err error) {
	for {
		stat, children, err := p.s.conn.SetAndList(ctx, p.node, p.data, p.version, p.line())
		switch {
		case stat.Mzxid != 0 && (err == nil || errors.Is(err, zk.ErrNoNode)): // a line that never was is empty
			p.version = stat.Version
			return stat.Mzxid, readFamily(children).row, nil
		case errors.Is(err, zk.ErrNoNode):
			return 0, nil, errGone
		case !errors.Is(err, zk.ErrBadVersion):
			return 0, nil, err
		}
		found, stat, err := p.s.conn.Get(ctx, p.node)
		if errors.Is(err, zk.ErrNoNode) {
			return 0, nil, errGone
		}
		if err != nil {
			return 0, nil, err
		}
		p.version = stat.Version
		if string(found) == revokeData {
			p.data = found
		}
	}
}

// downgrade replaces the node for writing by one for reading with the same number, in
// one transaction: so no other writer can come between. Curator does so since 5.5, in two
// steps. Its fence is above the writer's, whose end the listing has seen.
func (a *attempt) downgrade(ctx context.Context) (driver.Grant, error) {
	p := a.p
	w, _ := parseNode(base(p.node))
	reader := p.path + "/" + prefixOf(p.owner) + readKind.base() + w.key
	p.data = writeNote(a.r.Meta, a.r.OnRevoke != nil)
	p.moves()
	switch err := p.s.conn.Replace(ctx, p.node, reader, p.data); {
	case errors.Is(err, zk.ErrNoNode):
		return driver.Grant{}, a.lost()
	case err != nil && nothingDone(err):
		a.b.stays(p)
		return driver.Grant{}, err
	case err != nil:
		p.doubt = true
		return driver.Grant{}, err
	}
	p.mode, p.node, p.version = driver.Read, reader, 0
	f, parent, err := p.s.list(ctx, p.path)
	if err != nil {
		return driver.Grant{}, err
	}
	me, err := p.among(f.row, p.node)
	if err != nil {
		return driver.Grant{}, err
	}
	return a.grant(uint64(parent.Pzxid), f.row.waits(me, readKind))
}

// lost is for a hold that was to become another one, and is gone: others may have held
// since.
func (a *attempt) lost() error {
	a.p.end(true)
	a.b.drop(a.p)
	return driver.ErrLost
}
