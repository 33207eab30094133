package zklock

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/zk"
)

// A semaphore is Curator's SemaphoreV2: who waits stands in the line of a mutex in locks;
// who is at its head has a node in leases, and holds when that is among the first of as
// many as there are permits; then it leaves the line. A try makes its lease at once, if
// there is room for all who stand in line and for itself. Since the order of the leases
// decides, and nobody gets before another, there are never more holders than permits.

// lookForPermit finds out whether there is room for a try.
func (a *attempt) lookForPermit(ctx context.Context, s *session, path string) error {
	seen, err := s.survey(ctx, path)
	if err != nil {
		return err
	}
	if len(seen.row) > 0 {
		return conflict(path, seen.row[0])
	}
	if err := checkLimit(path, seen.leases, a.r.Limit); err != nil {
		return err
	}
	if len(seen.leases)+len(seen.locks) >= a.r.Limit {
		return heldBy(seen.leases...)
	}
	return nil
}

// survey is all that is below a lock's path.
type survey struct{ row, leases, locks row }

func (s *session) survey(ctx context.Context, path string) (survey, error) {
	var rows [3]row
	var errs [3]error
	var wg sync.WaitGroup
	for i, end := range []string{"", "/" + leasesNode, "/" + locksNode} {
		wg.Go(func() {
			f, _, err := s.listNow(ctx, path+end)
			rows[i], errs[i] = f.row, err
		})
	}
	wg.Wait()
	return survey{rows[0], rows[1], rows[2]}, errors.Join(errs[:]...)
}

// checkLimit refuses a limit other than that which leases in use were taken with.
// Curator's tell none.
func checkLimit(path string, leases row, limit int) error {
	for _, n := range leases {
		if n.limit != 0 && n.limit != limit {
			return fmt.Errorf("%w: the semaphore %s has %d permits for those who use it, not %d", driver.ErrInvalid, driver.Quote(path), n.limit, limit)
		}
	}
	return nil
}

// permit gets to the head of the line and then among the first leases.
func (a *attempt) permit(ctx context.Context) (driver.Grant, error) {
	p := a.p
	if a.r.Queue || p.lock != "" {
		if err := a.queueUp(ctx); err != nil {
			return driver.Grant{}, err
		}
	}
	leases, fence, err := a.lease(ctx)
	if err != nil {
		return driver.Grant{}, err
	}
	me, err := p.among(leases, p.node)
	if err != nil {
		return driver.Grant{}, err
	}
	if err := checkLimit(p.path, leases[:me], a.r.Limit); err != nil {
		return driver.Grant{}, err
	}
	if me >= a.r.Limit {
		return driver.Grant{}, a.refuse(ctx, leases[:min(a.r.Limit, len(leases))]...)
	}
	if err := p.checkOthers(ctx); err != nil {
		return driver.Grant{}, err
	}
	if fence == 0 {
		if fence, _, err = p.rewrite(ctx); err != nil {
			return driver.Grant{}, err
		}
	}
	g, err := a.grant(uint64(fence), len(leases) > a.r.Limit)
	if err == nil && p.lock != "" {
		p.leaveLine()
	}
	return g, err
}

// leaveQueue lets the next one come. Nothing waits for that.
func (p *place) leaveLine() {
	s, lock := p.s, p.lock
	p.lock = ""
	s.b.sweep(s, func() error {
		_, err := s.remove(s.b.life, lock)
		return err
	})
}

// queueUp is nil at the head of the line.
func (a *attempt) queueUp(ctx context.Context) error {
	p := a.p
	var line row
	if p.lock == "" {
		e, err := p.create(ctx, p.queue()+"/"+prefixOf(p.owner)+mutexKind.base(), p.data)
		if err != nil {
			return err
		}
		p.lock, line = e.Path, readFamily(e.Children).row
	} else {
		f, _, err := p.relist(ctx, p.queue(), p.lock, mutexKind)
		if err != nil {
			return err
		}
		line = f.row
	}
	me, err := p.among(line, p.lock)
	if errors.Is(err, errGone) {
		return p.startOver(ctx)
	}
	if err != nil {
		return err
	}
	if _, is := line.blocker(me, mutexKind); is {
		return a.refuse(ctx, line[0])
	}
	return nil
}

// startOver is for a place of which one node is gone: the other must go too.
func (p *place) startOver(ctx context.Context) error {
	if _, err := p.clear(ctx); err != nil {
		return err
	}
	return errGone
}

// lease makes the place's lease, or looks at it again. The fence is the transaction that
// made it, if no lease has come or gone since: then it is above all that have ended. Else
// it is 0, and one must be made.
func (a *attempt) lease(ctx context.Context) (leases row, fence int64, err error) {
	p := a.p
	if p.node != "" {
		f, _, err := p.s.listNow(ctx, p.dir())
		if err == nil && f.row.index(base(p.node)) < 0 {
			err = p.startOver(ctx)
		}
		return f.row, 0, err
	}
	e, err := p.create(ctx, p.prefix(), p.data)
	if err != nil {
		return nil, 0, err
	}
	p.node = e.Path
	if e.Parent.Pzxid == e.Stat.Czxid {
		fence = e.Stat.Czxid
	}
	return readFamily(e.Children).row, fence, nil
}

// checkOthers refuses a permit where the path is in use as another kind of lock. The
// other kind looks for leases after it has made its node, and this looks for such nodes
// after it has made a lease: so one of the two sees the other.
func (p *place) checkOthers(ctx context.Context) error {
	f, _, err := p.s.list(ctx, p.path)
	if err == nil && len(f.row) > 0 {
		return conflict(p.path, f.row[0])
	}
	return err
}

// checkPermits is the other side: the line first, since those who leave it have a lease
// by then.
func (p *place) checkPermits(ctx context.Context) error {
	for _, end := range []string{locksNode, leasesNode} {
		children, _, err := p.s.conn.Children(ctx, p.path+"/"+end)
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return err
		}
		if f := readFamily(children); len(f.row) > 0 {
			return conflict(p.path, node{name: end + "/" + f.row[0].name, kind: leaseKind})
		}
	}
	return nil
}
