package page

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"
)

// A page gets what has changed since the last round of the poller. Viewers with the same rights who look at the same page
// share that: it is made once, and each of them costs the server a write.

// change is an event for a page.
type change struct {
	Now    int64         `json:"now"` // of the server's clock, in milliseconds
	Groups []groupChange `json:"groups"`
}

type groupChange struct {
	ID    string             `json:"id"`
	Set   []piece            `json:"set"`            // that are new or have changed
	Order []string           `json:"order,omitzero"` // of all pieces, if it has changed; it may be empty then
	Ends  map[string][]int64 `json:"ends,omitempty"` // of the holds in pieces in which nothing else has changed: how long after Now, and the TTL
}

// content is what a page shows after a round.
type content struct {
	groups map[string]*sentGroup
	ids    []string // of the groups

	mu    sync.Mutex
	whole []byte    // all of it, for who had nothing before
	made  time.Time // whole
	next  *content  // the first that followed, and what has changed until then
	text  []byte
}

type sentGroup struct {
	pieces map[string]piece
	order  []string
}

// contentKey says whose content is the same.
type contentKey struct {
	query  Query
	lang   int
	rights any
}

// Watch is an open page. The poller runs until it is closed.
type Watch struct {
	Fresh <-chan struct{} // signals that there may be changes
	Close func()

	view view
	sent *content // nil: nothing was
}

// Watch opens a page.
func (p *Page) Watch(q Query) *Watch {
	who := &viewer{name: q.Name}
	leave := p.poller.join(who)
	return &Watch{Fresh: who.fresh, Close: leave, view: view{p: p, query: q}}
}

// Changes returns what has changed since it was called last, as JSON, or nil.
func (w *Watch) Changes(ctx context.Context, who Viewer, lang int) []byte {
	w.view.who, w.view.lang = who, lang
	old, now := w.sent, w.view.content(ctx)
	w.sent = now
	if old == nil {
		return now.all()
	}
	return old.until(now)
}

// content returns what the page shows now.
func (v *view) content(ctx context.Context) *content {
	p := &v.p.poller
	snap := p.current(ctx, v.query.Name)
	make := func() *content { return contentOf(v.groups(snap)) }
	if v.who.Rights == nil || snap != p.latest.Load() {
		return make()
	}
	return snap.shared(contentKey{v.query, v.lang, v.who.Rights}, make)
}

// shared returns the content for a key, which it makes once.
func (s *snapshot) shared(key contentKey, make func() *content) *content {
	once, _ := s.contents.LoadOrStore(key, sync.OnceValue(make))
	return once.(func() *content)()
}

func contentOf(groups []group) *content {
	c := &content{groups: map[string]*sentGroup{}}
	for _, g := range groups {
		one := &sentGroup{pieces: make(map[string]piece, len(g.Pieces))}
		for _, p := range g.Pieces {
			one.pieces[p.ID] = p
			one.order = append(one.order, p.ID)
		}
		c.groups[g.ID] = one
		c.ids = append(c.ids, g.ID)
	}
	return c
}

// all returns all of it as a change. Pages that are opened at about the same time share the text: it says what time it is, and
// the next round may be long after this one.
func (c *content) all() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.made) > time.Second/2 {
		c.whole, c.made = (&content{}).changes(c), now
	}
	return c.whole
}

// until returns what has changed from c to now, or nil.
func (c *content) until(now *content) []byte {
	if c == now {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next == now {
		return c.text
	}
	text := c.changes(now)
	if c.next == nil {
		c.next, c.text = now, text
	}
	return text
}

func (c *content) changes(now *content) []byte {
	e := change{Now: time.Now().UnixMilli()}
	for _, id := range now.ids {
		if g := now.groups[id].since(c.groups[id], e.Now); len(g.Set) > 0 || g.Order != nil || g.Ends != nil {
			g.ID = id
			e.Groups = append(e.Groups, g)
		}
	}
	if e.Groups == nil {
		return nil
	}
	text, _ := json.Marshal(e) // it can be encoded
	return text
}

// since returns what differs from what was sent; nil: nothing was.
func (g *sentGroup) since(old *sentGroup, now int64) groupChange {
	c := groupChange{Set: []piece{}}
	if old == nil {
		old = &sentGroup{}
		c.Order = append([]string{}, g.order...)
	}
	if !slices.Equal(old.order, g.order) {
		c.Order = append([]string{}, g.order...)
	}
	for _, id := range g.order {
		p := g.pieces[id]
		before, known := old.pieces[id]
		switch {
		case !known || before.sum != p.sum || len(before.ends) != len(p.ends):
			c.Set = append(c.Set, p)
		case !slices.Equal(before.ends, p.ends):
			if c.Ends == nil {
				c.Ends = map[string][]int64{}
			}
			for i, n := range p.ends {
				if i%2 == 0 {
					n -= now
				}
				c.Ends[id] = append(c.Ends[id], n)
			}
		}
	}
	return c
}
