package zklock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/zk"
)

// What one request proves at most: so many holds, with so many bytes of paths.
const (
	batchSize  = 500
	batchBytes = 256 << 10
)

// Renew proves that the nodes of all holds exist, in one request for 500 of a session.
// What has to be kept alive is the session, which keeps itself alive; so a TTL can't be
// raised above that with which the hold was taken.
func (b *Backend) Renew(ctx context.Context, holds []driver.Hold) []error {
	errs := make([]error, len(holds))
	bySession := map[*session][]renewal{}
	for i, h := range holds {
		if errs[i] = b.check(h); errs[i] != nil {
			continue
		}
		p := b.placeOf(h)
		if p == nil || !p.holds() {
			// A hold that is not known here is none of this backend's sessions.
			errs[i] = driver.ErrLost
			continue
		}
		if h.TTL > p.s.ttl {
			errs[i] = fmt.Errorf("zklock: renew %s: %w: it shares a session for a TTL of %v, which can't become %v", driver.Quote(h.Name), driver.ErrUnsupported, p.s.ttl, h.TTL)
			continue
		}
		bySession[p.s] = append(bySession[p.s], renewal{p, h.TTL, &errs[i]})
	}
	start := time.Now()
	var wg sync.WaitGroup
	for s, batch := range bySession {
		for len(batch) > 0 {
			n := fitting(batch)
			some := batch[:n:n]
			wg.Go(func() { s.prove(ctx, some, start) })
			batch = batch[n:]
		}
	}
	wg.Wait()
	return errs
}

type renewal struct {
	p   *place
	ttl time.Duration
	err *error
}

// fitting is how many of the first go into one request.
func fitting(batch []renewal) int {
	n, size := 1, len(batch[0].p.node)
	for n < min(len(batch), batchSize) {
		if size += len(batch[n].p.node); size > batchBytes {
			break
		}
		n++
	}
	return n
}

// prove asks for all nodes in one transaction: that proves also how long the session lives.
func (s *session) prove(ctx context.Context, batch []renewal, start time.Time) {
	for len(batch) > 0 {
		missing, err := s.conn.CheckAll(ctx, nodesOf(batch))
		if err == nil && missing >= 0 {
			batch[missing].lost()
			batch = s.present(ctx, append(batch[:missing:missing], batch[missing+1:]...))
			continue
		}
		deadline := s.conn.Deadline()
		for _, r := range batch {
			switch {
			case sessionOver(err):
				*r.err = driver.ErrLost
			case err != nil:
				*r.err = fmt.Errorf("zklock: renew %s: %w", driver.Quote(r.p.name), err)
			case deadline.Before(start.Add(r.ttl)):
				*r.err = fmt.Errorf("zklock: renew %s: %w", driver.Quote(r.p.name), errUnproven)
			}
		}
		return
	}
}

func nodesOf(batch []renewal) []string {
	paths := make([]string, len(batch))
	for i, r := range batch {
		paths[i] = r.p.node
	}
	return paths
}

// present leaves those whose nodes are not seen to be missing: a transaction tells of one
// only.
func (s *session) present(ctx context.Context, batch []renewal) []renewal {
	nodes, err := s.conn.GetAll(ctx, nodesOf(batch))
	if err != nil {
		return batch
	}
	var there []renewal
	for i, r := range batch {
		if errors.Is(nodes[i].Err, zk.ErrNoNode) {
			r.lost()
		} else {
			there = append(there, r)
		}
	}
	return there
}

// lost is for a hold whose node is gone.
func (r renewal) lost() {
	*r.err = driver.ErrLost
	r.p.end(true)
	r.p.s.b.drop(r.p)
}
