package server

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
)

const mostRows = 1000 // of a list

// group is a part of a page whose pieces come, go and change.
type group struct {
	ID     string
	Pieces []piece
}

// view is one of the pages, for one viewer.
type view struct {
	c     *exchange
	lang  int
	page  string
	query viewQuery
}

// viewQuery is the parsed query of a page.
type viewQuery struct{ Prefix, Sort, Name, Done string }

func (q viewQuery) values() url.Values {
	v := url.Values{}
	for key, value := range map[string]string{"prefix": q.Prefix, "sort": q.Sort, "name": q.Name} {
		if value != "" {
			v.Set(key, value)
		}
	}
	return v
}

// view reads the query, and returns an error if the viewer may not see what it names.
func (c *exchange) view(page string) (*view, error) {
	q := c.r.URL.Query()
	v := &view{c, c.language(), page, viewQuery{q.Get("prefix"), q.Get("sort"), q.Get("name"), q.Get("done")}}
	if page == "lock" {
		if err := c.lockName(v.query.Name); err != nil {
			return nil, err
		}
		return v, c.may(See, v.query.Name)
	}
	if !c.who.sees(v.query.Prefix) {
		return nil, c.may(See, v.query.Prefix)
	}
	return v, nil
}

// show answers with a page.
func (c *exchange) show(page string) error {
	v, err := c.view(page)
	if err != nil {
		return err
	}
	snap := c.s.poller.current(c.r.Context(), v.query.Name)
	f := c.frame(page)
	values := v.query.values()
	values.Set("page", page)
	f.Events = "/v1/events?" + values.Encode()
	groups := map[string][]piece{}
	for _, g := range v.groups(snap) {
		groups[g.ID] = g.Pieces
	}
	return c.html(http.StatusOK, page, struct {
		frame
		Query  viewQuery
		Groups map[string][]piece
		Caps   driver.Caps
		Row    guarantee
	}{f, v.query, groups, c.s.caps, guaranteeOf(c.s.caps.Name, v.lang)})
}

// change is an event for a page.
type change struct {
	Now    int64         `json:"now"` // of the server's clock, in milliseconds
	Groups []groupChange `json:"groups"`
}

type groupChange struct {
	ID    string   `json:"id"`
	Set   []piece  `json:"set"`            // that are new or have changed
	Order []string `json:"order,omitzero"` // of all pieces, if it has changed; it may be empty then
}

// changes sends a page what has changed, as long as it is open.
func (c *exchange) changes() error {
	if err := c.noBody(); err != nil {
		return err
	}
	q, err := c.query("page", "prefix", "sort", "name")
	if err != nil {
		return err
	}
	page := cmp.Or(q.Get("page"), "locks")
	if !slices.Contains(livePages, page) {
		return invalid("page is %.20q: want one of: %s", page, strings.Join(livePages, ", "))
	}
	v, err := c.view(page)
	if err != nil {
		return err
	}
	ctx, end, err := c.stream()
	if err != nil {
		return err
	}
	defer end()
	who := &viewer{name: v.query.Name}
	defer c.s.poller.join(who)()
	e, sent := c.events(), sentPieces{}
	return e.forward(ctx, httpwire.EventHello, who.fresh, func() error {
		if v, err = c.view(page); err != nil {
			return err
		}
		groups := sent.changed(v.groups(c.s.poller.current(ctx, v.query.Name)))
		if len(groups) == 0 {
			return nil
		}
		return e.send("change", change{time.Now().UnixMilli(), groups})
	})
}

var livePages = []string{"locks", "lock", "hot", "losses", "backend"}

// sentPieces records the content of a page: the pieces of each group, and their order.
type sentPieces map[string]*sentGroup

type sentGroup struct {
	sums  map[string]uint64
	order []string
}

// changed returns what differs from what was sent, and takes note of it.
func (s sentPieces) changed(groups []group) (all []groupChange) {
	for _, g := range groups {
		old := s[g.ID]
		if old == nil {
			old = &sentGroup{}
		}
		now, c := &sentGroup{sums: make(map[string]uint64, len(g.Pieces))}, groupChange{ID: g.ID, Set: []piece{}}
		for _, p := range g.Pieces {
			now.sums[p.ID] = p.sum
			now.order = append(now.order, p.ID)
			if sum, ok := old.sums[p.ID]; !ok || sum != p.sum {
				c.Set = append(c.Set, p)
			}
		}
		if s[g.ID] == nil || !slices.Equal(old.order, now.order) {
			c.Order = append([]string{}, now.order...)
		}
		s[g.ID] = now
		if len(c.Set) > 0 || c.Order != nil {
			all = append(all, c)
		}
	}
	return all
}

// groups returns the parts of the page that change.
func (v *view) groups(s *snapshot) []group {
	state := []piece{v.piece("trouble", "trouble", s.failed(v.c.who))}
	switch v.page {
	case "locks":
		return append(v.locks(s), group{"state", state})
	case "lock":
		return append(v.oneLock(s), group{"state", state})
	case "hot":
		return append(v.hot(s), group{"state", state})
	case "losses":
		return append(v.losses(), group{"state", state})
	}
	return append(v.backend(s), group{"state", state})
}

func (v *view) piece(name, id string, data any) piece {
	return v.c.s.page.piece(v.lang, name, id, data)
}

// locks is the list of all locks.
func (v *view) locks(s *snapshot) []group {
	all := s.locks(v.c.who, v.query.Prefix)
	switch v.query.Sort {
	case "held":
		all = sorted(all, compareSince)
	case "name":
		all = sorted(all, func(a, b *row) int { return cmp.Compare(a.Name, b.Name) })
	}
	sum := struct{ Held, Waiting, Late, Locks, Rows, Listed int }{Locks: len(all), Rows: min(len(all), mostRows)}
	if s.More {
		sum.Listed = mostListed
	}
	for _, e := range all {
		if len(e.Holders) > 0 {
			sum.Held++
		}
		if slices.ContainsFunc(e.Holders, party.Late) {
			sum.Late++
		}
		sum.Waiting += max(e.Waiting, 0)
	}
	rows := make([]piece, 0, sum.Rows)
	for _, e := range all[:sum.Rows] {
		rows = append(rows, e.rows[v.lang]())
	}
	return []group{{"summary", []piece{v.piece("sum", "sum", sum)}}, {"rows", rows}}
}

func sorted(all []*row, compare func(a, b *row) int) []*row {
	slices.SortStableFunc(all, compare)
	return all
}

// oneLock returns everything that is known of one lock.
func (v *view) oneLock(s *snapshot) []group {
	name := v.query.Name
	l, known := lock{Name: name, Waiting: -1}, false
	if e := s.byName[name]; e != nil {
		l, known = e.lock, e.Known
	}
	past, used := v.c.s.seen.history(name)
	data := struct {
		lock
		Known            bool
		Past             []holdRecord
		Use              use
		CanAsk, CanBreak bool
	}{l, known, past, used, false, v.c.who.May(Break, name)}
	if _, ok := v.c.s.backend.(driver.Revoker); ok && v.c.who.May(Ask, name) {
		data.CanAsk = slices.ContainsFunc(l.Holders, func(h party) bool { return v.c.s.caps.Revocable.Has(h.Mode) })
	}
	return []group{
		{"holders", []piece{v.piece("holderlist", "holderlist", data)}},
		{"queue", []piece{v.piece("queuelist", "queuelist", data)}},
		{"use", []piece{v.piece("uselist", "uselist", data)}},
		{"history", []piece{v.piece("historylist", "historylist", data)}},
	}
}

// hot is the list of the names with the longest waits.
func (v *view) hot(s *snapshot) []group {
	rows := []piece{}
	for _, u := range s.hot() {
		if v.c.who.May(See, u.Name) && len(rows) < 50 {
			rows = append(rows, v.piece("hotrow", "u"+lockID(u.Name), u))
		}
	}
	return []group{{"uses", rows}, {"none", v.empty(len(rows), "hot.empty")}}
}

// empty is a text for a list without rows.
func (v *view) empty(rows int, key string) []piece {
	if rows > 0 {
		key = ""
	}
	return []piece{v.piece("none", "empty", key)}
}

// losses is the list of what went wrong.
func (v *view) losses() []group {
	rows := []piece{}
	for _, i := range v.c.s.seen.news() {
		if v.c.who.May(See, i.Name) {
			rows = append(rows, v.piece("incident", i.ID(), i))
		}
	}
	return []group{{"incidents", rows}, {"none", v.empty(len(rows), "losses.empty")}}
}

// backend is how the backend answers.
func (v *view) backend(s *snapshot) []group {
	rows := []piece{}
	for _, sp := range v.c.s.seen.speeds() {
		rows = append(rows, v.piece("speed", "c"+sp.Call, sp))
	}
	round := struct {
		Locks int
		Took  time.Duration
	}{len(s.entries), s.Took}
	return []group{{"calls", rows}, {"round", []piece{v.piece("roundinfo", "roundinfo", round)}}}
}
