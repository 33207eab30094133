package cli

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/distlock/distlock/driver"
)

const (
	// mostConns is how many connections verify takes at most, as the server counts them.
	mostConns = 20

	// openConns bounds the first backend, which answers questions only. It is the fewest
	// with which locks that live on connections can be opened.
	openConns = 3

	// perLane is how many backends a check may cost the server: its two, and the two before
	// them, which are closed but may still count.
	perLane = 4
)

// room is how much of a server the checks may use.
type room struct {
	lanes  int  // checks at once
	conns  int  // for each backend that has a pool; 0: any number
	holds  int  // on each backend at once; 0: any number
	serial bool // the modes of a check take turns
}

// gauge is a backend that knows how many connections its server has left.
type gauge interface {
	FreeConnections(ctx context.Context) (int, error)
}

// measure finds out how much verify may use, b included: half of the connections that are
// left, and mostConns at most. Memory and files have no connections.
func measure(ctx context.Context, o *verifyOptions, b driver.Backend) (room, error) {
	u, err := driver.ParseURL(o.url)
	if err != nil || u.Scheme == "mem" || u.Scheme == "sqlite" {
		return room{lanes: o.parallel}, err
	}
	r, own, least := room{conns: 1, serial: true}, 1, 1
	if _, pools := capped(o.url, openConns); pools {
		r.conns = 2 // one listens
		if b.Caps().Session {
			r.conns, own, least = 4, openConns, 4 // two hold, one waits, and one is for all else
		}
	}
	budget := mostConns
	if g, ok := b.(gauge); ok {
		free, err := g.FreeConnections(ctx)
		if err != nil {
			return room{}, exit(exitUnreachable, "verify: not run: the server does not tell how many connections are free: %w", err)
		}
		budget = min(budget, (free+own)/2)
	}
	r.conns = min(r.conns, (budget-own)/perLane)
	if r.conns < least {
		return room{}, exit(exitUnreachable, "verify: not run: a check needs %d connections, and half of those that the server has left for this user are %d; close some, or raise the limit of the server, the user or the database",
			own+perLane*least, budget)
	}
	r.lanes = min(o.parallel, (budget-own)/(perLane*r.conns))
	if q := u.Query(); q.Get("strategy") == "forupdate" || q.Get("level") == "transaction" {
		r.holds = r.conns - 2
	}
	return r, nil
}

// capped returns rawURL with a limit for the pools that it makes, those of members
// included, and reports whether it makes any. A lower limit of its own stays.
func capped(rawURL string, conns int) (limited string, pools bool) {
	const key = "max_connections"
	u, err := driver.ParseURL(rawURL)
	if err != nil || conns == 0 {
		return rawURL, false
	}
	q := u.Query()
	for _, values := range q {
		for i, value := range values {
			at := strings.LastIndex(value[:max(strings.Index(value, "://"), 0)], "=") + 1 // a member may have a name
			member, is := capped(value[at:], conns)
			values[i], pools = value[:at]+member, pools || is
		}
	}
	if slices.Contains([]string{"mysql", "postgres", "postgresql"}, u.Scheme) {
		pools = true
		if own, err := strconv.Atoi(q.Get(key)); !q.Has(key) || err == nil && own > conns {
			q.Set(key, strconv.Itoa(conns))
		}
	}
	if !pools {
		return rawURL, false
	}
	u.RawQuery = q.Encode()
	return u.String(), true
}
