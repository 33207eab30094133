package page

import (
	"cmp"
	"slices"
	"time"

	"github.com/distlock/distlock/server/internal/seen"
)

const mostRows = 1000 // of a list

// group is a part of a page whose pieces come, go and change.
type group struct {
	ID     string
	Pieces []piece
}

// view is one of the pages, for one viewer.
type view struct {
	p     *Page
	who   Viewer
	lang  int
	query Query
}

// groups returns the parts of the page that change.
func (v *view) groups(s *snapshot) []group {
	state := []piece{v.piece("trouble", "trouble", s.failed(v.who))}
	switch v.query.Page {
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
	return v.p.files.piece(v.lang, name, id, data)
}

// locks is the list of all locks.
func (v *view) locks(s *snapshot) []group {
	all := s.locks(v.who, v.query.Prefix)
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
	past, used := v.p.o.Seen.History(name)
	data := struct {
		lock
		Known            bool
		Past             []seen.Record
		Use              seen.Use
		MayAsk, CanBreak bool
		NoAsk            string // why the holders can't be asked, as a key of texts
	}{l, known, past, used, v.who.Ask(name), v.who.Break(name), ""}
	switch {
	case !v.p.o.CanAsk || v.p.o.Caps.Revocable == 0:
		data.NoAsk = "ask.backend"
	case !slices.ContainsFunc(l.Holders, func(h party) bool { return v.p.o.Caps.Revocable.Has(h.Mode) }):
		data.NoAsk = "ask.mode"
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
		if v.who.See(u.Name) && len(rows) < 50 {
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
	for _, i := range v.p.o.Seen.News() {
		if v.who.See(i.Name) {
			rows = append(rows, v.piece("incident", i.ID(), i))
		}
	}
	count := 0
	if v.who.See("") {
		count = v.p.o.Seen.Losses()
	}
	return []group{{"incidents", rows}, {"count", []piece{v.piece("losscount", "losscount", count)}}, {"none", v.empty(len(rows), "losses.empty")}}
}

// backend is how the backend answers.
func (v *view) backend(s *snapshot) []group {
	rows := []piece{}
	for _, sp := range v.p.o.Seen.Speeds() {
		rows = append(rows, v.piece("speed", "c"+sp.Call, sp))
	}
	round := struct {
		Locks int
		Took  time.Duration
	}{len(s.entries), s.Took}
	return []group{{"calls", rows}, {"round", []piece{v.piece("roundinfo", "roundinfo", round)}}}
}
