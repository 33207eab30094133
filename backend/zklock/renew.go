package zklock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
	"github.com/distlock/distlock/internal/zk"
)

// Bounds of one request that verifies holds: their number, and the length of their paths.
const (
	batchSize  = 500
	batchBytes = 256 << 10
)

// Renew verifies that the nodes of all holds exist, in one request for 500 holds of a session. The
// session keeps itself alive. So a TTL can't exceed the TTL with which the hold was acquired.
func (b *Backend) Renew(ctx context.Context, holds []driver.Hold) []error {
	start := time.Now()
	var wg wait.Group
	errs := make([]error, len(holds))
	bySession := map[*session][]nodeCheck{}
	for i, h := range holds {
		if errs[i] = b.checkHold(h); errs[i] != nil {
			continue
		}
		if errs[i] = h.ValidateRenewal(); errs[i] != nil {
			continue
		}
		t := b.ticketOf(h)
		if t == nil || !t.holds() {
			errs[i] = driver.ErrLost
			continue
		}
		if h.TTL > t.s.ttl {
			errs[i] = fmt.Errorf("zklock: renew %s: %w: it shares a session for a TTL of %v, which can't become %v", driver.Quote(h.Name), driver.ErrUnsupported, t.s.ttl, h.TTL)
			continue
		}
		c := nodeCheck{t, h.TTL, &errs[i]}
		if t.unknown {
			wg.Go(func() {
				if c.resolve(ctx) {
					t.s.verify(ctx, []nodeCheck{c}, start)
				}
			})
			continue
		}
		bySession[t.s] = append(bySession[t.s], c)
	}
	for s, checks := range bySession {
		for len(checks) > 0 {
			n := fitting(checks)
			batch := checks[:n:n]
			wg.Go(func() { s.verify(ctx, batch, start) })
			checks = checks[n:]
		}
	}
	wg.Wait()
	return errs
}

// nodeCheck is the renewal of one hold.
type nodeCheck struct {
	t   *ticket
	ttl time.Duration
	err *error
}

// fitting returns how many checks fit into one request.
func fitting(checks []nodeCheck) int {
	n, size := 1, len(checks[0].t.node)
	for n < min(len(checks), batchSize) {
		if size += len(checks[n].t.node); size > batchBytes {
			break
		}
		n++
	}
	return n
}

// verify checks all nodes in one transaction, which also proves until when the session lives.
func (s *session) verify(ctx context.Context, batch []nodeCheck, start time.Time) {
	for len(batch) > 0 {
		paths := make([]string, len(batch))
		for i, c := range batch {
			paths[i] = c.t.node
		}
		failed, err := s.conn.CheckAll(ctx, paths)
		if failed >= 0 { // a failed transaction names only one
			if c := batch[failed]; errors.Is(err, zk.ErrNoNode) {
				c.lost()
			} else {
				*c.err = s.b.fail("renew", c.t.name, err)
			}
			batch = slices.Delete(batch, failed, failed+1)
			continue
		}
		deadline := s.conn.Deadline()
		for _, c := range batch {
			switch {
			case sessionOver(err):
				*c.err = fmt.Errorf("%w: %w", driver.ErrLost, err)
			case err != nil:
				*c.err = s.b.fail("renew", c.t.name, err)
			case deadline.Before(start.Add(c.ttl)):
				*c.err = fmt.Errorf("zklock: renew %s: %w", driver.Quote(c.t.name), errUnconfirmed)
			}
		}
		return
	}
}

// resolve finds the node of a hold whose downgrade had no answer. It reports whether there is one.
func (c nodeCheck) resolve(ctx context.Context) bool {
	err := c.t.resolve(ctx)
	switch {
	case sessionOver(err):
		*c.err = fmt.Errorf("%w: %w", driver.ErrLost, err)
	case err != nil:
		*c.err = c.t.s.b.fail("renew", c.t.name, err)
	case c.t.node == "":
		c.lost()
	default:
		c.t.watchHeld()
		return true
	}
	return false
}

// lost is for a hold whose node is gone.
func (c nodeCheck) lost() {
	*c.err = driver.ErrLost
	c.t.markGone(true)
	c.t.s.b.removeTicket(c.t)
}
