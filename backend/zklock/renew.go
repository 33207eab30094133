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
		c := b.claimOf(h)
		if c == nil || !c.holds() {
			errs[i] = driver.ErrLost
			continue
		}
		if h.TTL > c.s.ttl {
			errs[i] = fmt.Errorf("zklock: renew %s: %w: it shares a session for a TTL of %v, which can't become %v", driver.Quote(h.Name), driver.ErrUnsupported, c.s.ttl, h.TTL)
			continue
		}
		check := nodeCheck{c, h.TTL, &errs[i]}
		if c.unknown {
			wg.Go(func() {
				if check.resolve(ctx) {
					c.s.verify(ctx, []nodeCheck{check}, start)
				}
			})
			continue
		}
		bySession[c.s] = append(bySession[c.s], check)
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
	c   *claim
	ttl time.Duration
	err *error
}

// fitting returns how many checks fit into one request.
func fitting(checks []nodeCheck) int {
	n, size := 1, len(checks[0].c.node)
	for n < min(len(checks), batchSize) {
		if size += len(checks[n].c.node); size > batchBytes {
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
		for i, check := range batch {
			paths[i] = check.c.node
		}
		failed, err := s.conn.CheckAll(ctx, paths)
		if failed >= 0 { // a failed transaction names only one
			if check := batch[failed]; errors.Is(err, zk.ErrNoNode) {
				check.lost()
			} else {
				*check.err = s.b.fail("renew", check.c.name, err)
			}
			batch = slices.Delete(batch, failed, failed+1)
			continue
		}
		deadline := s.conn.Deadline()
		for _, check := range batch {
			switch {
			case sessionOver(err):
				*check.err = fmt.Errorf("%w: %w", driver.ErrLost, err)
			case err != nil:
				*check.err = s.b.fail("renew", check.c.name, err)
			case deadline.Before(start.Add(check.ttl)):
				*check.err = fmt.Errorf("zklock: renew %s: %w", driver.Quote(check.c.name), errUnconfirmed)
			}
		}
		return
	}
}

// resolve finds the node of a hold whose downgrade had no answer. It reports whether there is one.
func (check nodeCheck) resolve(ctx context.Context) bool {
	err := check.c.resolve(ctx)
	switch {
	case sessionOver(err):
		*check.err = fmt.Errorf("%w: %w", driver.ErrLost, err)
	case err != nil:
		*check.err = check.c.s.b.fail("renew", check.c.name, err)
	case check.c.node == "":
		check.lost()
	default:
		check.c.watchHeld()
		return true
	}
	return false
}

// lost is for a hold whose node is gone.
func (check nodeCheck) lost() {
	*check.err = driver.ErrLost
	check.c.markGone(true)
	check.c.s.b.removeClaim(check.c)
}
