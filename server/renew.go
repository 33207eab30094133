package server

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
)

// renew answers each hold in a line of its own.
func (c *exchange) renew() error {
	var m httpwire.Renewal
	if err := c.decode(&m, httpwire.MaxRenewal); err != nil {
		return err
	}
	if len(m.Holds) == 0 || len(m.Holds) > httpwire.MaxHolds {
		return invalid("%d holds: want 1 to %d", len(m.Holds), httpwire.MaxHolds)
	}
	lines := make([]httpwire.Renewed, len(m.Holds))
	var holds []driver.Hold
	var at []int // the line of each
	for i, w := range m.Holds {
		lines[i].Index = i
		h, err := c.renewal(w)
		var end func()
		if err == nil {
			end, err = c.s.ownerCalls.tryBegin(h.Owner)
		}
		if err != nil {
			lines[i].Outcome, lines[i].Detail = problemOf(err).Kind, err.Error()
			continue
		}
		defer end()
		holds, at = append(holds, h), append(at, i)
	}
	for i, err := range c.renewAll(holds) {
		lines[at[i]].Outcome = httpwire.KindOf(err)
		if err != nil {
			lines[at[i]].Detail = err.Error()
		}
	}
	return c.lines(lines)
}

// renewal checks one hold of a renewal.
func (c *exchange) renewal(w httpwire.Hold) (driver.Hold, error) {
	h, err := c.hold(w)
	if err != nil {
		return h, err
	}
	if err := c.may(Lock, h.Name); err != nil {
		return h, err
	}
	return h, c.checkTTL(h.TTL)
}

// renewAll makes one call of the backend, which shares it among its own servers.
func (c *exchange) renewAll(holds []driver.Hold) []error {
	if len(holds) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), callTimeout)
	defer cancel()
	began := time.Now()
	errs := c.s.backend.Renew(ctx, holds)
	for i, err := range errs {
		c.s.metrics.backend("renew", err, time.Since(began))
		switch httpwire.KindOf(err) {
		case httpwire.OK:
			c.s.quota.prolong(c.who.Name, holds[i], false)
			c.s.seen.renewed(holds[i], began)
		case httpwire.Lost:
			c.s.quota.remove(holds[i], true)
			c.s.seen.lost(holds[i])
		case httpwire.Unknown:
			h := holds[i]
			h.Shorten = false
			c.s.quota.prolong(c.who.Name, h, false)
			c.s.seen.unknownRenewal(holds[i], err)
		}
	}
	return errs
}

// lines answers with a JSON object in each line.
func (c *exchange) lines(all []httpwire.Renewed) error {
	c.w.Header().Set("Content-Type", "application/x-ndjson")
	e := json.NewEncoder(c.w)
	for _, line := range all {
		if err := e.Encode(line); err != nil {
			return err
		}
	}
	return nil
}

// release ends a hold, or a place in the queue.
func (c *exchange) release() error {
	var m httpwire.Hold
	if err := c.decode(&m, httpwire.MaxBody); err != nil {
		return err
	}
	h, err := c.hold(m)
	if err != nil {
		return err
	}
	return c.releaseHold(h)
}

func (c *exchange) releaseHold(h driver.Hold) error {
	if err := c.may(Lock, h.Name); err != nil && c.may(Break, h.Name) != nil {
		return err
	}
	_, end, err := c.s.ownerCalls.begin(c.r.Context(), h.Owner)
	if err != nil {
		return err
	}
	defer end()
	if err := c.backendRelease(c.r.Context(), h); err != nil {
		return err
	}
	c.s.seen.released(h)
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

func (c *exchange) backendRelease(ctx context.Context, h driver.Hold) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	began := time.Now()
	err := c.s.backend.Release(ctx, h)
	c.s.metrics.backend("release", err, time.Since(began))
	if kind := httpwire.KindOf(err); kind == httpwire.OK || kind == httpwire.Lost {
		c.s.quota.remove(h, kind == httpwire.Lost)
	}
	return err
}
