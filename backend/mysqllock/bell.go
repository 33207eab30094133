package mysqllock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"regexp"
	"strconv"
	"sync"

	"github.com/distlock/distlock/internal/sqlrow"
)

// bell wakes waiters through user-level locks, which the server gives to the next as soon
// as they are released. It carries no truth: that is in the rows.
//
// A backend that holds something keeps 64 such locks in a session of its own, its ringer:
// one for each slot, which is a part of all names. A row tells which one its holder rings.
// To ring is to take a new one for the slot, whose number is one more, and then to
// release the old: whoever waited for it is granted it, and whoever comes too late
// finds it free and knows that it rang. No lock is used twice, so a waiter that
// was cut off keeps nobody waiting by what it is granted.
type bell struct {
	db     *sql.DB
	ringer ringer
	ears   chan struct{} // holds one for each ear that has a connection

	ctx    context.Context // ends with the bell
	cancel context.CancelFunc
	mu     sync.Mutex // keeps goroutines from starting when it has ended
	wg     sync.WaitGroup
}

// maxEars is how many connections one backend listens with. Who gets none looks at the
// row from time to time.
const maxEars = 4

func newBell(db *sql.DB) *bell {
	b := &bell{db: db, ears: make(chan struct{}, maxEars)}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.ringer.init(b)
	return b
}

// start starts a goroutine, unless the bell has ended.
func (b *bell) start(run func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ctx.Err() != nil {
		return false
	}
	b.wg.Go(run)
	return true
}

// Address is the user-level lock that is released when k is rung for.
func (b *bell) Address(k sqlrow.Key) string { return b.ringer.tag(slotOf(k)) }

// tags are the Tags of all slots, divided by commas; "-" where there is none.
func (b *bell) tags() string { return b.ringer.tags() }

// Notify rings for k.
func (b *bell) Notify(k sqlrow.Key) { b.ringer.ring(slotOf(k)) }

// Listen makes an ear for k.
func (b *bell) Listen(sqlrow.Key) sqlrow.Listener { return &ear{bell: b} }

// Close ends the sessions, with all locks in them.
func (b *bell) Close() error {
	b.mu.Lock()
	b.cancel()
	b.mu.Unlock()
	b.wg.Wait()
	return nil
}

// slots is how many locks a ringer has.
const slots = 64

// slotOf is the slot of a name. sqlExtend knows it too.
func slotOf(k sqlrow.Key) int { return int(k[0]) % slots }

// lockName is the user-level lock of a number. It has lower case only, and 64 bytes at
// most: what all servers tell apart.
func lockName(base string, number int64) string { return base + "/" + strconv.FormatInt(number, 10) }

// tagForm is what lockName makes. Nothing else gets into a statement.
var tagForm = regexp.MustCompile(`^(distlock/[0-9a-f]{16}/[0-9]{1,2})/([0-9]{1,15})$`)

// splitTag divides a lock's name.
func splitTag(tag string) (base string, number int64, ok bool) {
	parts := tagForm.FindStringSubmatch(tag)
	if parts == nil {
		return "", 0, false
	}
	number, err := strconv.ParseInt(parts[2], 10, 64)
	return parts[1], number, err == nil
}

const lockPrefix = "distlock/"

// drop closes a connection instead of giving it back to the pool.
func drop(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return sqldriver.ErrBadConn })
	_ = conn.Close()
}

// pins counts the connections that are kept out of pools for longer, so that those with
// a limit have some left for statements.
var pins = struct {
	sync.Mutex
	of map[*sql.DB]int
}{of: map[*sql.DB]int{}}

// pin reports whether one more connection may be kept: half of the pool at most.
func pin(db *sql.DB) bool {
	pins.Lock()
	defer pins.Unlock()
	limit := db.Stats().MaxOpenConnections
	if limit > 0 && pins.of[db] >= limit/2 {
		return false
	}
	pins.of[db]++
	return true
}

func unpin(db *sql.DB) {
	pins.Lock()
	defer pins.Unlock()
	if pins.of[db]--; pins.of[db] == 0 {
		delete(pins.of, db)
	}
}
