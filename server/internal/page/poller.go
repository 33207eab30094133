package page

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/wait"
	"github.com/distlock/distlock/server/internal/seen"
)

// Bounds of one round of the poller.
const (
	roundTime    = time.Second     // between two rounds, at least
	retryTime    = 5 * time.Second // after one that failed
	inspectTime  = roundTime / 4   // for the inspections of a round, and four times that for the first round
	roundShare   = 4               // a round takes at most one part in so many of the time
	listShare    = 10              // and its listing, which may read all keys of the backend
	mostListed   = 10_000          // names
	mostInspects = 1000
	inspectors   = 8
	mostParties  = 200              // of the holders and of the waiters of a lock, that are kept
	mostPairs    = 20               // of the metadata of one
	answerTime   = 10 * time.Second // for a round
)

// poller looks at the backend for all viewers of the page, who cost the backend together what one of them does.
// It runs while there are viewers.
type poller struct {
	inspector driver.Inspector
	seen      *seen.Log
	files     *files

	mu      sync.Mutex
	viewers map[*viewer]struct{}
	stop    context.CancelFunc // nil: it doesn't run

	round  sync.Mutex // is locked during a round, and guards known
	known  map[string]*row
	latest atomic.Pointer[snapshot]
}

// viewer is one open page.
type viewer struct {
	name  string // of the lock that it shows; "": it shows many
	fresh wait.Signal
}

// snapshot is the result of a round. It is not changed.
type snapshot struct {
	At      time.Time
	Took    time.Duration
	listed  time.Duration // of it, for the list
	Err     error         // of this round; the locks are then from the last round that was answered
	More    bool          // there are more names than are listed
	entries []*row
	byName  map[string]*row

	hot      func() []seen.Use
	contents sync.Map // of pages, by contentKey: func() *content
}

// row is a lock as it was last inspected. It is replaced when the lock has changed.
type row struct {
	lock
	Known bool      // it was inspected
	at    time.Time // when
	rows  [len(languages)]func() piece
}

// join adds a viewer. The first one starts the poller, and the last one to leave ends it.
func (p *poller) join(v *viewer) (leave func()) {
	v.fresh = wait.NewSignal()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.viewers == nil {
		p.viewers = map[*viewer]struct{}{}
	}
	p.viewers[v] = struct{}{}
	if p.stop == nil {
		ctx, stop := context.WithCancel(context.Background())
		p.stop = stop
		go p.run(ctx)
	}
	if p.latest.Load() != nil {
		v.fresh.Notify()
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.viewers, v)
		if len(p.viewers) == 0 {
			p.stop()
			p.stop = nil
		}
	}
}

func (p *poller) run(ctx context.Context) {
	for ctx.Err() == nil {
		snap := p.current(ctx, "")
		p.mu.Lock()
		for v := range p.viewers {
			v.fresh.Notify()
		}
		p.mu.Unlock()
		if wait.Sleep(ctx, snap.rest()) != nil {
			return
		}
	}
}

// rest returns how long the backend is left alone after a round.
func (s *snapshot) rest() time.Duration {
	if s.Err != nil { // what took its time was the wait for an answer
		return retryTime
	}
	return max(roundTime, (roundShare-1)*s.Took, (listShare-1)*s.listed)
}

// current returns the result of the last round, or of a new one if that is too old. A name that is wanted and was
// not inspected is inspected alone.
func (p *poller) current(ctx context.Context, name string) *snapshot {
	p.round.Lock()
	defer p.round.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	old := p.latest.Load()
	if old == nil || time.Since(old.At) >= old.rest() {
		snap := p.newRound(ctx, p.wanted(name))
		p.latest.Store(snap)
		return snap
	}
	if e := old.byName[name]; name == "" || e != nil && e.Known || old.Err != nil {
		return old
	}
	if p.known[name] == nil {
		p.known[name] = p.blank(name)
	}
	return &snapshot{
		At: old.At, Took: old.Took, listed: old.listed, Err: p.inspect(ctx, []string{name}), More: old.More, entries: old.entries,
		byName: map[string]*row{name: p.known[name]}, hot: old.hot,
	}
}

// wanted returns the names that viewers look at.
func (p *poller) wanted(name string) map[string]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := map[string]bool{}
	for v := range p.viewers {
		if v.name != "" {
			names[v.name] = true
		}
	}
	if name != "" {
		names[name] = true
	}
	return names
}

// newRound lists all names, and inspects as many as a round has time for. The caller has locked round.
func (p *poller) newRound(ctx context.Context, wanted map[string]bool) *snapshot {
	began := time.Now()
	names, more, err := p.list(ctx)
	listed := time.Since(began)
	if err == nil {
		rows := make(map[string]*row, len(names))
		for _, name := range slices.AppendSeq(names, maps.Keys(wanted)) {
			if rows[name] = p.known[name]; rows[name] == nil {
				rows[name] = p.blank(name)
			}
		}
		p.known = rows
	}
	err = errors.Join(err, p.inspect(ctx, p.due(wanted, began)))
	now := time.Now()
	snap := &snapshot{At: now, Took: now.Sub(began), listed: listed, Err: err, More: more, byName: maps.Clone(p.known), hot: sync.OnceValue(p.seen.Hot)}
	for name, e := range p.known {
		if e.Known && len(e.Holders) == 0 && len(e.Waiters) == 0 && e.Waiting <= 0 && !wanted[name] {
			delete(p.known, name) // it was released since it was listed
		} else if !e.Known || len(e.Holders) > 0 || len(e.Waiters) > 0 || e.Waiting > 0 {
			snap.entries = append(snap.entries, e)
		}
	}
	slices.SortFunc(snap.entries, byNeed)
	return snap
}

// byNeed has the most waited for first, then the longest held.
func byNeed(a, b *row) int {
	return cmp.Or(cmp.Compare(max(b.Waiting, 0), max(a.Waiting, 0)), compareSince(a, b), cmp.Compare(a.Name, b.Name))
}

func compareSince(a, b *row) int {
	x, y := a.Since(), b.Since()
	if x.IsZero() != y.IsZero() { // unknown ones come last
		if x.IsZero() {
			return 1
		}
		return -1
	}
	return x.Compare(y)
}

// list returns the names of locks, and whether there are more.
func (p *poller) list(ctx context.Context) (names []string, more bool, err error) {
	err = p.inspector.List(ctx, "", func(name string) bool {
		more = len(names) == mostListed
		if !more {
			names = append(names, name)
		}
		return !more
	})
	return names, more, err
}

// due returns the names to inspect in this round: first the names that viewers look at, then names that were never inspected,
// then names with a TTL that is over, then the others, the oldest first.
func (p *poller) due(wanted map[string]bool, now time.Time) []string {
	rank := func(name string) int {
		e := p.known[name]
		over := func(h party) bool { return !h.Until.IsZero() && h.Until.Before(now) }
		switch {
		case wanted[name]:
			return 0
		case !e.Known:
			return 1
		case slices.ContainsFunc(e.Holders, over):
			return 2
		}
		return 3
	}
	names := slices.Collect(maps.Keys(p.known))
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), p.known[a].at.Compare(p.known[b].at))
	})
	return names[:min(len(names), mostInspects)]
}

// inspect looks at locks until the round's time is over. It returns the first error.
func (p *poller) inspect(ctx context.Context, names []string) error {
	end := time.Now().Add(inspectTime)
	if p.latest.Load() == nil {
		end = time.Now().Add(4 * inspectTime)
	}
	var next atomic.Int64
	var mu sync.Mutex
	var failed error
	var all wait.Group
	for range min(inspectors, len(names)) {
		all.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(names) || i > 0 && time.Now().After(end) || ctx.Err() != nil {
					return
				}
				info, err := p.inspector.Inspect(ctx, names[i])
				mu.Lock()
				if err == nil {
					p.update(names[i], info)
				}
				failed = cmp.Or(failed, err)
				mu.Unlock()
				if httpwire.KindOf(err) == httpwire.Unknown {
					return // the others would get no answer either
				}
			}
		})
	}
	all.Wait()
	return failed
}

// blank returns the row of a lock that was not inspected yet.
func (p *poller) blank(name string) *row { return p.row(lock{Name: name, Waiting: -1}, false) }

func (p *poller) row(l lock, known bool) *row {
	e := &row{lock: l, Known: known}
	for i := range languages {
		e.rows[i] = sync.OnceValue(func() piece { return p.files.piece(i, "row", lockID(l.Name), e) })
	}
	return e
}

// update replaces the row of a lock if the lock has changed.
func (p *poller) update(name string, info driver.Info) {
	old, now := p.known[name], time.Now()
	l := lock{Name: name, Mode: info.Mode, Limit: info.Limit, Held: len(info.Holders), Waiting: info.WaiterCount}
	for _, h := range info.Holders[:min(len(info.Holders), mostParties)] {
		l.Holders = append(l.Holders, p.party(name, h, old.Holders, now))
	}
	for _, h := range info.Waiters[:min(len(info.Waiters), mostParties)] {
		l.Waiters = append(l.Waiters, p.party(name, h, old.Waiters, now))
	}
	p.seen.Observed(name, l.seen())
	e := old
	if !old.Known || !reflect.DeepEqual(l, old.lock) {
		e = p.row(l, true)
		p.known[name] = e
	}
	e.at = now
}

// party describes a holder. Its instants stay as they were if the backend's durations say the same: a lock that
// hasn't changed is not sent again.
func (p *poller) party(name string, h driver.Holder, before []party, now time.Time) party {
	n := party{
		owner: h.Owner, Mode: h.Mode, Fence: h.Fence, Foreign: h.Foreign,
		Program: seen.Short(h.Meta["program"]), PID: seen.Short(h.Meta["pid"]), Host: seen.Short(h.Meta["host"]),
	}
	for _, key := range slices.Sorted(maps.Keys(h.Meta)) {
		if key != "program" && key != "pid" && key != "host" && len(n.More) < mostPairs {
			n.More = append(n.More, pair{seen.Short(key), seen.Short(h.Meta[key])})
		}
	}
	if h.Held >= 0 {
		n.Since = now.Add(-h.Held)
	}
	if h.Left >= 0 {
		n.Until, n.TTL = now.Add(h.Left), max(h.Left, p.seen.TTL(name, h.Owner))
	}
	if i := slices.IndexFunc(before, func(o party) bool { return o.owner == h.Owner }); i >= 0 && h.Owner != "" {
		n.Since, n.Until = steady(before[i].Since, n.Since), steady(before[i].Until, n.Until)
		if before[i].TTL >= n.TTL || n.TTL-before[i].TTL < roundTime {
			n.TTL = before[i].TTL
		}
	}
	return n
}

// steady returns the old instant if the new one is about the same.
func steady(old, new time.Time) time.Time {
	if d := new.Sub(old); !old.IsZero() && !new.IsZero() && d.Abs() < 500*time.Millisecond {
		return old
	}
	return new
}

// locks returns those with a prefix that who may see.
func (s *snapshot) locks(who Viewer, prefix string) []*row {
	var all []*row
	for _, e := range s.entries {
		if strings.HasPrefix(e.Name, prefix) && who.See(e.Name) {
			all = append(all, e)
		}
	}
	return all
}

// failed returns why the last round failed if the viewer may see all names, since the error may contain one.
func (s *snapshot) failed(who Viewer) string {
	switch {
	case s.Err == nil:
		return ""
	case who.See(""):
		return seen.Short(httpwire.ProblemOf(s.Err).Detail)
	}
	return "–"
}
