package sqlrow

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

// fake is a Dialect with a table in memory. It counts statements.
type fake struct {
	mu     sync.Mutex
	rows   map[Key]Row
	counts map[string]int
	before func(what string) error // called before each statement
	skew   time.Duration           // of the clock
	reader time.Duration           // how far Read's clock is ahead of it
	locked map[Key]bool            // by other programs
	silent bool                    // Read answers nothing
	limit  int                     // of the rows that Read answers; 0: none
}

func newFake() *fake { return &fake{rows: map[Key]Row{}, counts: map[string]int{}} }

// interpose lets a function run before each statement from now on. It may be nil.
func (f *fake) interpose(before func(what string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = before
}

// begin counts a statement, and locks the table until the statement ends.
func (f *fake) begin(ctx context.Context, what string) (now int64, err error) {
	f.mu.Lock()
	before := f.before
	f.mu.Unlock()
	if before != nil {
		err = before(what)
	}
	f.mu.Lock()
	f.counts[what]++
	now = time.Now().Add(f.skew).UnixMicro()
	if what == "read" {
		now += f.reader.Microseconds()
	}
	return now, cmp.Or(err, ctx.Err())
}

// counted returns the number of each statement since the last call.
func (f *fake) counted() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.counts
	f.counts = map[string]int{}
	return c
}

func (f *fake) Take(ctx context.Context, t TakeRequest) (int64, error) {
	now, err := f.begin(ctx, "take")
	defer f.mu.Unlock()
	r, ok := f.rows[KeyOf(t.Name)]
	mine := r.Owner == t.Owner && r.Kind == t.Mode
	if err != nil || !ok || r.Claimed > now || r.Number >= MaxNumber || r.Until > now && !mine {
		return 0, err
	}
	if r.Until <= now {
		r.Since = now
	}
	r.Number = max(r.Number+1, now)
	r.Granted, r.Owner, r.Until, r.Meta, r.Address = r.Number, t.Owner, max(r.Until, now+t.TTL.Microseconds()), t.Meta, t.Address
	r.Kind, r.Limit, r.Claims, r.Claimed = t.Mode, 0, nil, 0
	f.put(r)
	return r.Number, nil
}

func (f *fake) Contend(ctx context.Context, t TakeRequest) (Taken, error) {
	now, err := f.begin(ctx, "contend")
	defer f.mu.Unlock()
	r, ok := f.rows[KeyOf(t.Name)]
	if err != nil || !ok || r.Number >= MaxNumber {
		return Taken{}, err
	}
	list, own, err := r.listed(now, t.Owner)
	kind, held, mine := claims.KindOf(t.Mode), r.Until > now, r.Until > now && r.Owner == t.Owner
	switch {
	case err != nil:
		return Taken{}, nil
	case (held || len(list) > 0) && (r.Kind != kind || t.Mode == driver.Counted && r.Limit != t.Limit):
		return Taken{}, nil
	case !t.Mode.Alone() && slices.ContainsFunc(list, func(c claimRecord) bool { return !t.Mode.SameKind(driver.Mode(c.Mode)) }):
		return Taken{}, nil
	case own < len(list) && (list[own].Place == 0 || list[own].Mode != uint8(t.Mode)):
		return Taken{}, nil
	}
	isWriter := func(c claimRecord) bool { return c.Mode == uint8(driver.Write) }
	may := !held
	switch t.Mode {
	case driver.Read:
		may = may && !slices.ContainsFunc(list[:own], isWriter)
	case driver.Counted:
		may = may && own < t.Limit
	default:
		may = mine || may && own == 0
	}
	if !may && (mine || !t.Queue || own < len(list)) {
		return Taken{}, nil
	}
	number, claim := max(r.Number+1, now), claimRecord{Owner: t.Owner, Mode: uint8(t.Mode), Since: now, Address: t.Address, Meta: string(t.Meta)}
	switch {
	case !may:
		claim.Place, claim.Until = r.Rev+1, now+t.PlaceLife.Microseconds()
		list = append(list, claim)
	case t.Mode.Alone():
		if !mine {
			r.Since, list = now, slices.Delete(list, own, min(own+1, len(list)))
		}
		r.Number, r.Granted, r.Owner, r.Until, r.Meta, r.Address = number, number, t.Owner, max(r.Until, now+t.TTL.Microseconds()), t.Meta, t.Address
	default:
		claim.Number, claim.Until = number, now+t.TTL.Microseconds()
		list = slices.Replace(list, own, min(own+1, len(list)), claim)
		r.Number, r.Granted, r.Owner, r.Since, r.Until, r.Meta, r.Address = number, 0, "", 0, 0, nil, ""
	}
	r.Kind = kind
	if t.Mode == driver.Counted {
		r.Limit = t.Limit
	}
	f.put(r.with(list))
	if !may {
		return Taken{Placed: true}, nil
	}
	return Taken{Number: number}, nil
}

// listed returns the claims in the order of the text, and the index of the owner's, or their number.
func (r Row) listed(now int64, owner string) (list []claimRecord, own int, err error) {
	if r.Claimed > now {
		r.Owner = ""
		list, err = r.records()
	}
	if own = slices.IndexFunc(list, func(c claimRecord) bool { return c.Owner == owner }); own < 0 {
		own = len(list)
	}
	return list, own, err
}

// with returns r with these claims.
func (r Row) with(list []claimRecord) Row {
	r.Claims, _ = encode(list)
	r.Claimed = 0
	for _, c := range list {
		r.Claimed = max(r.Claimed, c.Until)
	}
	return r
}

func (f *fake) Drop(ctx context.Context, h HoldKey) (dropped, waited bool, err error) {
	now, err := f.begin(ctx, "drop")
	defer f.mu.Unlock()
	r := f.rows[KeyOf(h.Name)]
	list, own, bad := r.listed(now, h.Owner)
	if err != nil || bad != nil || own == len(list) || list[own].Until <= now {
		return false, false, err
	}
	f.put(r.with(slices.Delete(list, own, own+1)))
	return true, r.Waiting > now, nil
}

// end lets an owner's claim end.
func (f *fake) end(name, owner string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, ok := f.rows[KeyOf(name)]
	if !ok {
		return
	}
	if r.Owner == owner {
		r.Until = 1
	}
	list, own, _ := r.listed(0, owner)
	if own < len(list) {
		list[own].Until = 1
		r.Claims, _ = encode(list)
	}
	f.rows[KeyOf(name)] = r
}

func (f *fake) put(r Row) {
	r.Rev++
	f.rows[r.Key] = r
}

func (f *fake) Free(ctx context.Context, h HoldKey, _ bool) (freed, waited bool, err error) {
	now, err := f.begin(ctx, "free")
	defer f.mu.Unlock()
	r := f.rows[KeyOf(h.Name)]
	if err != nil || r.Owner != h.Owner || r.Until <= now {
		return false, false, err
	}
	r.Owner, r.Granted, r.Since, r.Until, r.Meta, r.Address = "", 0, 0, 0, nil, ""
	f.put(r)
	return true, r.Waiting > now, nil
}

func (f *fake) Extend(ctx context.Context, holds []HoldKey, e Extension) (n int, until int64, err error) {
	now, err := f.begin(ctx, "extend")
	defer f.mu.Unlock()
	until = now + e.TTL.Microseconds()
	for _, h := range holds {
		r := f.rows[KeyOf(h.Name)]
		if err != nil || r.Owner != h.Owner || r.Until <= now || f.locked[KeyOf(h.Name)] {
			continue
		}
		r.Until, r.Number = max(r.Until, until), max(r.Number, e.Floor)
		f.put(r)
		n++
	}
	return n, until, err
}

func (f *fake) Rewrite(ctx context.Context, w Rewriting) (bool, error) {
	now, err := f.begin(ctx, "rewrite")
	defer f.mu.Unlock()
	r := f.rows[w.Key]
	if err != nil || r.Claimed <= now || now < w.Earliest || now > w.Latest || !bytes.Contains(r.Claims, w.Old) || f.locked[w.Key] {
		return false, err
	}
	r.Claims = bytes.Replace(r.Claims, w.Old, w.New, 1)
	r.Claimed, r.Number = max(r.Claimed, w.Until), max(r.Number, w.Number)
	f.put(r)
	return true, nil
}

func (f *fake) Read(ctx context.Context, names []string) (now int64, rows []Row, err error) {
	now, err = f.begin(ctx, "read")
	defer f.mu.Unlock()
	if f.silent {
		return 0, nil, err
	}
	for _, name := range names {
		if r, ok := f.rows[KeyOf(name)]; ok && (f.limit == 0 || len(rows) < f.limit) {
			rows = append(rows, r)
		}
	}
	return now, rows, err
}

func (f *fake) Insert(ctx context.Context, r Row) (bool, error) {
	now, err := f.begin(ctx, "insert")
	defer f.mu.Unlock()
	if _, ok := f.rows[r.Key]; ok || err != nil || !r.timely(now) {
		return false, err
	}
	f.rows[r.Key] = r
	return true, nil
}

// timely reports whether r may be written now.
func (r Row) timely(now int64) bool { return r.Earliest <= now && now <= r.Latest }

func (f *fake) Swap(ctx context.Context, r Row, _ bool) (done, waited bool, err error) {
	now, err := f.begin(ctx, "swap")
	defer f.mu.Unlock()
	old, ok := f.rows[r.Key]
	if err != nil || !ok || old.Rev != r.Rev || !r.timely(now) || f.locked[r.Key] {
		return false, false, err
	}
	r.Waiting = old.Waiting
	f.put(r)
	return true, r.Waiting > now, nil
}

func (f *fake) Mark(ctx context.Context, k Key, d time.Duration) error {
	now, err := f.begin(ctx, "mark")
	defer f.mu.Unlock()
	if r, ok := f.rows[k]; ok && err == nil {
		r.Waiting = max(r.Waiting, now+d.Microseconds())
		f.rows[k] = r
	}
	return err
}

func (f *fake) Names(ctx context.Context, prefix, after string, limit int) (names []string, err error) {
	now, err := f.begin(ctx, "names")
	defer f.mu.Unlock()
	all := slices.SortedFunc(maps.Values(f.rows), func(a, b Row) int { return cmp.Compare(a.Name, b.Name) })
	for _, r := range all {
		live := r.Until > now || r.Claimed > now
		if live && r.Name > after && strings.HasPrefix(r.Name, prefix) && len(names) < limit {
			names = append(names, r.Name)
		}
	}
	return names, err
}

var _ Dialect = (*fake)(nil)

// party is a notifier for the backends of one process. A notification wakes all of them.
type party struct {
	mu       sync.Mutex
	backends []*Backend
}

// partyNotifier is one backend's notifier in a party.
type partyNotifier struct{ p *party }

func (p *party) join(b *Backend) Notifier {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.backends = append(p.backends, b)
	return partyNotifier{p}
}

func (partyNotifier) Address(time.Duration) string { return "party" }

func (n partyNotifier) Notify(k Key) {
	n.p.mu.Lock()
	defer n.p.mu.Unlock()
	for _, b := range n.p.backends {
		b.Wake(k)
	}
}

func (partyNotifier) Listen(Key) Listener { return silentListener{} }
func (partyNotifier) Close() error        { return nil }

type silentListener struct{}

func (silentListener) Arm(context.Context) error { return nil }
func (silentListener) Close()                    {}

func (silentListener) Wait(ctx context.Context, _ string) (notified, silent bool) {
	<-ctx.Done()
	return false, false
}
