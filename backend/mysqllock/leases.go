package mysqllock

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
	"github.com/distlock/distlock/internal/sqlrow"
	"github.com/distlock/distlock/internal/unsent"
)

// leases is the part that UniqueIndex and Version share: a table in which a row names the owner of
// a lock and the end of its lease.
//
// Statements are texts without parameters, so that each is one round trip in every pool. In
// templates {name}, {owner}, {ttl} and the like stand for values, see fill.
type leases struct {
	*database
	naming  nameRules
	table   string // quoted
	index   string // that makes names unique, quoted
	columns tableInfo
	closed  atomic.Bool

	// take makes r's owner hold the lock, unless another owner holds it (HeldError). It returns the
	// number of the grant, or 0 if the row has changed meanwhile.
	take func(ctx context.Context, r driver.Request, meta []byte) (number int64, err error)

	read   string // template of a SELECT for look
	free   string // template of a statement that ends a hold
	listed string // a condition of the rows that List looks at
	bump   string // template of another assignment of a renewal
	raise  string // template of a statement that raises later fences above {floor}, if bump does not
}

const (
	// minTTL is about the longest that one write takes on a busy server. A shorter hold would end
	// before its grant is known.
	minTTL = 10 * time.Millisecond

	// maxMeta is the size of a BLOB.
	maxMeta = 1<<16 - 1

	// maxMisses is how often an attempt finds that the row has changed since it was read. Another
	// owner held the lock each time.
	maxMisses = 3

	// maxRenewBatch is how many holds one statement renews.
	maxRenewBatch = 64

	// ownerLength is the length of a UUID.
	ownerLength = 36

	// live is the condition that a lease lasts. A lease without an end, which another program may
	// have written, does.
	live = "(expires > " + clockSQL + " OR expires IS NULL)"

	// own is the condition that the owner's lease lasts.
	own = "name = {name} AND owner = {owner} AND " + live
)

// newLeases checks the tables, the first of which has the leases.
func newLeases(ctx context.Context, s *database, ddl []string, specs ...tableSpec) (*leases, error) {
	columns, err := s.prepare(ctx, ddl, specs...)
	if err != nil {
		return nil, err
	}
	if err := s.checkClocks(ctx, specs[0].table, specs[0].key); err != nil {
		return nil, err
	}
	n, err := newNameRules(columns["name"], s.server.charset)
	if err != nil {
		return nil, s.mismatch(specs[0], err)
	}
	l := &leases{database: s, naming: n, table: quoted(s.opts.Table), columns: columns}
	l.index, err = s.indexOf(ctx, specs[0])
	return l, err
}

// leaseColumns returns the columns of every such table.
func leaseColumns(more ...columnSpec) []columnSpec {
	return append([]columnSpec{
		{name: "name", types: textTypes},
		{name: "owner", types: textTypes, length: ownerLength},
		{name: "expires", types: bigType},
		{name: "since", types: bigType, optional: true},
		{name: "meta", types: longTypes, optional: true},
	}, more...)
}

// assign returns assignments of pairs of columns and values, without those of columns that the
// table lacks.
func (l *leases) assign(pairs ...string) string {
	var all []string
	for pair := range slices.Chunk(pairs, 2) {
		if _, ok := l.columns[pair[0]]; ok {
			all = append(all, pair[0]+" = "+pair[1])
		}
	}
	return strings.Join(all, ", ")
}

// column returns a column of the row t, or a value for a table that lacks it.
func (l *leases) column(name, instead string) string {
	if _, ok := l.columns[name]; ok {
		return "t." + name
	}
	return instead
}

// readTemplate returns the template for look. The parameters are expressions over the row t.
func (l *leases) readTemplate(version, number, owner, join string) string {
	return "SELECT " + clockSQL + ", t.name IS NOT NULL, " + version + ", " + number + ", " + owner + ", " +
		l.column("since", "0") + ", t.expires, " + l.column("meta", "''") +
		" FROM (SELECT 1) one LEFT JOIN " + l.table + " t ON t.name = {name}" + join
}

// fill writes values into a template: pairs of placeholders and values.
func fill(template string, h driver.Hold, pairs ...string) string {
	pairs = append(pairs, "{name}", literal(h.Name), "{owner}", literal(h.Owner), "{ttl}", micros(h.TTL),
		"{floor}", strconv.FormatUint(h.Floor>>claims.SpanBits, 10))
	return strings.NewReplacer(pairs...).Replace(template)
}

// micros writes a TTL in µs, rounded up.
func micros(ttl time.Duration) string {
	return strconv.FormatInt(int64((ttl+time.Microsecond-1)/time.Microsecond), 10)
}

// Caps reports a mutex with fences.
func (l *leases) Caps() driver.Caps {
	return driver.Caps{
		Name: l.name, Modes: driver.Modes(driver.Exclusive), Fence: true, Floor: true, MinTTL: minTTL,
	}
}

// Watch is not supported: nothing notifies of a release.
func (l *leases) Watch(context.Context, driver.Request) (driver.Watch, error) {
	return driver.Watch{}, driver.ErrSkip
}

// Close refuses later calls.
func (l *leases) Close() error {
	l.closed.Store(true)
	return nil
}

// validate refuses calls after Close, and holds that the table can't have.
func (l *leases) validate(h driver.Hold) error {
	switch {
	case l.closed.Load():
		return driver.ErrClosed
	case h.Mode != driver.Exclusive:
		return fmt.Errorf("%w: strategy %s has exclusive locks only", driver.ErrUnsupported, l.opts.Strategy)
	}
	return l.naming.check(h.Name)
}

// Acquire reads the row, and takes the lock if it is free.
func (l *leases) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	number, err := l.acquire(ctx, r)
	if err != nil {
		return driver.Grant{}, l.wrap("acquire", r.Name, err)
	}
	return granted(r, number)
}

func (l *leases) acquire(ctx context.Context, r driver.Request) (number int64, err error) {
	if err := l.validate(r.Hold); err != nil {
		return 0, err
	}
	if err := r.Validate(l.Caps()); err != nil {
		return 0, err
	}
	meta, err := encodeMeta(r.Meta)
	if err != nil {
		return 0, err
	}
	for range maxMisses {
		if number, err := l.take(ctx, r, meta); err != nil || number > 0 {
			return number, err
		}
	}
	return 0, &driver.HeldError{Retry: minTTL}
}

func encodeMeta(meta map[string]string) ([]byte, error) {
	if len(meta) == 0 {
		return nil, nil
	}
	text, err := json.Marshal(meta)
	if err == nil && len(text) > maxMeta {
		err = fmt.Errorf("%w: the meta data has %d bytes, at most %d are possible", driver.ErrInvalid, len(text), maxMeta)
	}
	return text, err
}

// Release ends a hold by one statement.
func (l *leases) Release(ctx context.Context, h driver.Hold) error {
	return l.wrap("release", h.Name, l.release(ctx, h))
}

func (l *leases) release(ctx context.Context, h driver.Hold) error {
	if err := l.validate(h); err != nil {
		return err
	}
	n, _, err := l.changeText(ctx, fill(l.free, h))
	if err == nil && n == 0 {
		err = driver.ErrLost
	}
	return err
}

// Renew makes holds last for their TTL at least.
func (l *leases) Renew(ctx context.Context, holds []driver.Hold) []error {
	errs := make([]error, len(holds))
	type terms struct {
		ttl     time.Duration
		floor   uint64
		shorten bool
	}
	alike := map[terms][]int{}
	for i, h := range holds {
		if errs[i] = l.validate(h); errs[i] == nil {
			errs[i] = h.ValidateRenewal()
		}
		if errs[i] == nil {
			t := terms{h.TTL, h.Floor, h.Shorten}
			alike[t] = append(alike[t], i)
		}
	}
	for _, indices := range alike {
		for batch := range slices.Chunk(indices, maxRenewBatch) {
			l.renewBatch(ctx, holds, batch, errs)
		}
	}
	for i, err := range errs {
		errs[i] = l.wrap("renew", holds[i].Name, err)
	}
	return errs
}

// renewBatch renews the holds at indices, which have the same terms, by one statement. If that does
// not renew all of them, each is renewed by itself.
func (l *leases) renewBatch(ctx context.Context, holds []driver.Hold, indices []int, errs []error) {
	if len(indices) > 1 && (l.raise == "" || holds[indices[0]].Floor>>claims.SpanBits == 0) {
		batch := make([]driver.Hold, len(indices))
		for j, i := range indices {
			batch[j] = holds[i]
		}
		if n, _, err := l.changeText(ctx, l.renewal(batch)); err == nil && n == int64(len(batch)) {
			return
		}
	}
	for _, i := range indices {
		errs[i] = l.renew(ctx, holds[i])
	}
}

// renewal returns the statement that renews holds with the same terms. Rows that are locked are
// left out, and no other rows are locked on the way, as by sqlExtend.
func (l *leases) renewal(holds []driver.Hold) string {
	which := make([]string, len(holds))
	for i, h := range holds {
		which[i] = fill("name = {name} AND owner = {owner}", h)
	}
	keep := "1"
	if holds[0].Shorten {
		keep = "0"
	}
	return l.server.updateJoin() + " (SELECT name AS id FROM " + l.table + " FORCE INDEX (" + l.index + ") WHERE (" +
		strings.Join(which, " OR ") + ") AND " + live + " LIMIT " + strconv.Itoa(len(holds)) + " FOR UPDATE " + l.server.skipLocked() + ") s" +
		" STRAIGHT_JOIN " + l.table + " FORCE INDEX (" + l.index + ") ON name = s.id SET " +
		fill(l.bump+"expires = "+longerSQL("expires", "{ttl}", keep), holds[0])
}

// renew renews one hold, after later fences were raised above its Floor.
func (l *leases) renew(ctx context.Context, h driver.Hold) error {
	if l.raise != "" && h.Floor>>claims.SpanBits > 0 {
		if err := l.changeOwn(ctx, h, fill(l.raise, h)); err != nil {
			return err
		}
	}
	return l.changeOwn(ctx, h, l.renewal([]driver.Hold{h}))
}

// changeOwn runs a statement that changes the row of a hold and sets the insert id. It tries again
// while the row is locked.
func (l *leases) changeOwn(ctx context.Context, h driver.Hold, text string) error {
	for miss := range sqlrow.MaxLocked {
		if err := sqlrow.Pause(ctx, miss); err != nil {
			return err
		}
		if _, changed, err := l.changeText(ctx, text); err != nil || changed > 0 {
			return err
		}
		row, err := l.look(ctx, h.Name)
		if err != nil {
			return err
		}
		if !row.held() || row.owner != h.Owner {
			return driver.ErrLost
		}
	}
	return sqlrow.ErrLocked
}

// leaseRow is the row of a name when it was read.
type leaseRow struct {
	now     int64 // the server's clock
	exists  bool
	version int64 // of the row; 0 for UniqueIndex
	number  int64 // of the grant
	owner   string
	since   int64
	expires sql.NullInt64
	meta    []byte
}

// look reads a name's row without waiting for writers.
func (l *leases) look(ctx context.Context, name string) (leaseRow, error) {
	var row leaseRow
	var version, number, since sql.NullInt64
	var owner sql.NullString
	err := l.db.QueryRowContext(ctx, fill(l.read, driver.Hold{Name: name})).
		Scan(&row.now, &row.exists, &version, &number, &owner, &since, &row.expires, &row.meta)
	row.version, row.number, row.owner, row.since = version.Int64, number.Int64, owner.String, since.Int64
	return row, err
}

// lookFor reads the row for an attempt. It returns a HeldError if another owner holds the lock, and
// the time since which r's owner holds it or will.
func (l *leases) lookFor(ctx context.Context, r driver.Request) (row leaseRow, since string, err error) {
	row, err = l.look(ctx, r.Name)
	switch {
	case err != nil:
		return row, "", unsent.Mark(err)
	case !row.held():
		row.since = row.now
	case row.owner != r.Owner:
		err = &driver.HeldError{Retry: max(row.left(), 0), Holders: []driver.Holder{row.holder()}}
	}
	return row, strconv.FormatInt(row.since, 10), err
}

// held reports whether the lease lasts.
func (r leaseRow) held() bool {
	return r.exists && r.owner != "" && (!r.expires.Valid || r.expires.Int64 > r.now)
}

// left returns how long the lease lasts; it is negative for a lease without an end.
func (r leaseRow) left() time.Duration {
	if !r.expires.Valid {
		return -1
	}
	return time.Duration(r.expires.Int64-r.now) * time.Microsecond
}

func (r leaseRow) holder() driver.Holder {
	h := driver.Holder{
		Owner: r.owner, Mode: driver.Exclusive, Fence: uint64(max(r.number, 0)) << claims.SpanBits, Left: r.left(), Held: -1,
	}
	if r.since > 0 {
		h.Held = time.Duration(max(r.now-r.since, 0)) * time.Microsecond
	}
	_ = json.Unmarshal(r.meta, &h.Meta) // another program may have written anything
	return h
}

// Inspect describes a lock.
func (l *leases) Inspect(ctx context.Context, name string) (driver.Info, error) {
	i := driver.Info{Name: name, WaiterCount: -1}
	if err := l.validate(driver.Hold{Name: name, Mode: driver.Exclusive}); err != nil {
		return i, l.wrap("inspect", name, err)
	}
	row, err := l.look(ctx, name)
	if err == nil && row.held() {
		i.Mode, i.Holders = driver.Exclusive, []driver.Holder{row.holder()}
	}
	return i, l.wrap("inspect", name, err)
}

// List yields the names that are held, in the order of their bytes. yield may call the backend.
func (l *leases) List(ctx context.Context, prefix string, yield func(name string) bool) error {
	if l.closed.Load() {
		return l.wrap("list", prefix, driver.ErrClosed)
	}
	err := claims.Pages(prefix, func(after string) ([]string, error) {
		rows, err := l.db.QueryContext(ctx, fmt.Sprintf("SELECT name FROM %s WHERE name >= %s AND name > %s AND %s ORDER BY name LIMIT %d",
			l.table, literal(prefix), literal(after), l.listed+live, claims.ListPage))
		if err != nil {
			return nil, err
		}
		return claims.ScanNames(rows)
	}, yield)
	return l.wrap("list", prefix, err)
}

// wrap names the call that failed.
func (s *database) wrap(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("mysqllock: %s %s: %w", op, driver.Quote(name), err)
}

// granted makes a grant of a number, whose fences are as package claims has them.
func granted(r driver.Request, number int64) (driver.Grant, error) {
	if number > claims.MaxNumber {
		return driver.Grant{}, fmt.Errorf("%w: the fences of this name are used up", driver.ErrInvalid)
	}
	return driver.Grant{Fence: uint64(number) << claims.SpanBits, Fences: min(max(r.Fences, 1), claims.Span), TTL: r.TTL}, nil
}
