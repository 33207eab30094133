package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
)

// pageSize is how many names a page of a list has, and maxPage how many it may have.
const (
	pageSize = 1000
	maxPage  = 10_000
)

// list answers with the names, in their order, that begin with a prefix and that the caller may see.
func (ex *exchange) list() error {
	q, err := ex.query("prefix", "after", "limit")
	if err != nil {
		return err
	}
	limit := pageSize
	if text := q.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > maxPage {
			return invalid("limit is %.20q: want 1 to %d", text, maxPage)
		}
	}
	if !ex.who.sees(q.Get("prefix")) {
		return ex.may(See, q.Get("prefix"))
	}
	names, err := ex.s.inspection.names(ex.r.Context(), ex.who, q.Get("prefix"), q.Get("after"), limit)
	if err != nil {
		return err
	}
	page := httpwire.Names{Names: names}
	if len(names) > limit {
		page.Names, page.Next = names[:limit], names[limit-1]
	}
	return ex.json(page)
}

// sees reports whether the identity may see any name with a prefix.
func (i *Identity) sees(prefix string) bool {
	return i.May(See, prefix) || slices.ContainsFunc(i.grants, func(g grant) bool {
		return g.rights&See != 0 && len(g.prefix) > len(prefix) && g.prefix[:len(prefix)] == prefix
	})
}

// inspect describes a lock.
func (ex *exchange) inspect() error {
	name, err := ex.pathName()
	if err != nil {
		return err
	}
	if err := ex.may(See, name); err != nil {
		return err
	}
	info, err := ex.s.inspection.Inspect(ex.r.Context(), name)
	if err != nil {
		return err
	}
	return ex.json(httpwire.FromInfo(info, ex.who.May(Break, name)))
}

// ask requests the release of a lock from its holder.
func (ex *exchange) ask() error { return ex.onHolder(Ask) }

// breakLock unlocks by force.
func (ex *exchange) breakLock() error { return ex.onHolder(Break) }

// forHolder asks a holder for its lock, or breaks it.
func (ex *exchange) forHolder(ctx context.Context, right Right, h driver.Hold, fence uint64) error {
	if right == Break {
		err := ex.backendRelease(ctx, h)
		if err == nil {
			ex.s.seen.Broken(h, fence, ex.who.Name)
		}
		return err
	}
	r, ok := ex.s.backend.(driver.Revoker)
	if !ok {
		return errNoAsking
	}
	began := time.Now()
	err := r.Revoke(ctx, h)
	ex.s.metrics.backend("revoke", err, time.Since(began))
	if errors.Is(err, driver.ErrSkip) {
		return errNoAsking
	}
	return err
}

var errNoAsking = fmt.Errorf("%w: the backend can't ask holders for their locks", driver.ErrUnsupported)

// onHolder acts on the holder that the body names, so that a successor can't be hit.
func (ex *exchange) onHolder(right Right) error {
	name, err := ex.pathName()
	if err != nil {
		return err
	}
	if err := ex.may(right, name); err != nil {
		return err
	}
	var m httpwire.Ask
	if err := ex.decode(&m, httpwire.MaxBody); err != nil {
		return err
	}
	h := driver.Hold{Name: name, Owner: m.Owner, Mode: m.Mode}
	switch {
	case m.Owner == "" && m.Fence == 0:
		return invalid("want the fence of the hold, or its owner")
	case m.Owner != "" && !isOwner(m.Owner):
		return errOwner
	case m.Owner == "" || m.Mode == 0:
		if h, err = ex.holder(name, m); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ex.r.Context(), callTimeout)
	defer cancel()
	if err := ex.forHolder(ctx, right, h, m.Fence); err != nil {
		return err
	}
	ex.w.WriteHeader(204)
	return nil
}

// holder finds the holder that m names.
func (ex *exchange) holder(name string, m httpwire.Ask) (driver.Hold, error) {
	info, err := ex.s.inspection.Inspect(ex.r.Context(), name)
	if err != nil {
		return driver.Hold{}, err
	}
	granted := ex.s.seen.Owner(name, m.Fence)
	for _, h := range info.Holders {
		byGrant := h.Owner == granted && granted != "" && h.Fence < m.Fence // the backend tells no fence, or the first of several
		if h.Owner == m.Owner && m.Owner != "" || m.Owner == "" && (h.Fence == m.Fence || byGrant) {
			if h.Foreign {
				return driver.Hold{}, invalid("the holder was not written by distlock: another library's lock, or other data")
			}
			return driver.Hold{Name: name, Owner: h.Owner, Mode: h.Mode}, nil
		}
	}
	return driver.Hold{}, fmt.Errorf("%w: no holder has this fence or owner", driver.ErrLost)
}
