package server

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
)

// The calls here have all in the path, the query and the headers, for shells and small clients.

const simpleTTL = 30 * time.Second // if the query has none

// simpleGrant is the body of the answer.
type simpleGrant struct {
	Name  string `json:"name"`
	Owner string `json:"owner"`
	httpwire.Grant
}

// simpleAcquire acquires. Without an owner in the header it makes one.
func (ex *exchange) simpleAcquire() error {
	arrived := time.Now()
	if err := ex.noBody(); err != nil {
		return err
	}
	m, maxWait, err := ex.simpleRequest()
	if err != nil {
		return err
	}
	if (m.Limit != 0) != (m.Mode == driver.Counted) {
		return invalid("want limit, the number of permits, with mode=counted, and not with other modes")
	}
	m.Owner = ex.r.Header.Get(httpwire.OwnerHeader)
	made := m.Owner == ""
	if made {
		m.Owner = driver.NewOwner()
	}
	r, err := ex.request(m)
	if err != nil {
		return err
	}
	g, err := ex.obtain(r, arrived, maxWait)
	for made && errors.Is(err, driver.ErrHeld) && errors.Is(err, driver.ErrSpent) && time.Since(arrived) < maxWait {
		m.Owner = driver.NewOwner()
		if r, err = ex.request(m); err == nil {
			g, err = ex.obtain(r, arrived, maxWait)
		}
	}
	gone := ex.r.Context().Err()
	if made && (err != nil && (maxWait > 0 || ex.unknown) || err == nil && gone != nil) {
		ex.forget(r.Hold)
		err = cmp.Or(err, gone)
	}
	if err != nil {
		return err
	}
	ex.w.Header().Set(httpwire.OwnerHeader, m.Owner)
	ex.w.Header().Set(httpwire.FenceHeader, strconv.FormatUint(g.Fence, 10))
	return ex.json(simpleGrant{r.Name, m.Owner, g})
}

// forget releases what may have been granted for an owner that only the server knows, or its place in the
// queue. No answer has named the owner, so no client believes that it holds.
func (ex *exchange) forget(h driver.Hold) {
	_ = ex.backendRelease(context.WithoutCancel(ex.r.Context()), h)
	ex.s.seen.Released(h)
}

// simpleRequest reads the path and the query of an acquire.
func (ex *exchange) simpleRequest() (m httpwire.Request, maxWait time.Duration, err error) {
	q, err := ex.query("ttl", "wait", "mode", "limit")
	if err != nil {
		return m, 0, err
	}
	if m.Name, err = ex.pathName(); err != nil {
		return m, 0, err
	}
	ttl, err := duration(q.Get("ttl"), simpleTTL)
	if err != nil {
		return m, 0, err
	}
	if maxWait, err = duration(q.Get("wait"), 0); err != nil {
		return m, 0, err
	}
	if maxWait > httpwire.MaxWait {
		return m, 0, invalid("wait is %v: at most %v; to wait longer, ask again with the same %s", maxWait, httpwire.MaxWait, httpwire.OwnerHeader)
	}
	m.Mode, m.TTL = driver.Exclusive, httpwire.Up(ttl)
	if text := q.Get("mode"); text != "" {
		if err := m.Mode.UnmarshalText([]byte(text)); err != nil {
			return m, 0, invalid("mode is %.20q: want exclusive, write, read or counted", text)
		}
	}
	if text := q.Get("limit"); text != "" {
		if m.Limit, err = strconv.Atoi(text); err != nil {
			return m, 0, invalid("limit is %.20q: want a number", text)
		}
	}
	return m, maxWait, nil
}

// duration reads a duration such as 30s. It is not negative.
func duration(text string, def time.Duration) (time.Duration, error) {
	if text == "" {
		return def, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, invalid("duration %.20q: want one such as 30s, 1m30s or 500ms", text)
	}
	return d, nil
}

var errNoOwner = invalid("there is no owner: send the one that the acquire answered, in the header %s", httpwire.OwnerHeader)

// simpleRenew renews.
func (ex *exchange) simpleRenew() error {
	m, _, err := ex.simpleRequest()
	if err != nil {
		return err
	}
	if m.Owner = ex.r.Header.Get(httpwire.OwnerHeader); m.Owner == "" {
		return errNoOwner
	}
	h, err := ex.renewal(m.Hold)
	if err != nil {
		return err
	}
	own, err := ex.s.ownerCalls.tryBegin(h.Owner)
	if err != nil {
		return err
	}
	defer own.end()
	if err := ex.renewAll([]driver.Hold{h})[0]; err != nil {
		return err
	}
	ex.w.WriteHeader(http.StatusNoContent)
	return nil
}

// simpleRelease releases.
func (ex *exchange) simpleRelease() error {
	m, _, err := ex.simpleRequest()
	if err != nil {
		return err
	}
	if m.Owner = ex.r.Header.Get(httpwire.OwnerHeader); m.Owner == "" {
		return errNoOwner
	}
	if err := ex.releaseHold(m.Hold); err != nil {
		return err
	}
	ex.w.WriteHeader(http.StatusNoContent)
	return nil
}

// noSuchCall answers to paths below a lock that are no calls, such as a name with an unescaped slash.
func (ex *exchange) noSuchCall() error {
	return problem(http.StatusNotFound, httpwire.Invalid, "no such call: a name has %%2F for /")
}
