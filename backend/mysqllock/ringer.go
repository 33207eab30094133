package mysqllock

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

const (
	ringerIdle  = time.Minute      // a ringer that is not needed for so long ends
	ringerPing  = 10 * time.Second // so it is seen that its session is gone
	ringerLife  = 60               // in s: the server ends a session that is silent for so long
	ringerPause = time.Second      // after a failure
	ringTimeout = 5 * time.Second
)

var errRingerBroken = errors.New("the ringer's locks are not its own")

// ringer holds the user-level locks of one backend, as long as it holds anything.
type ringer struct {
	bell *bell
	work chan struct{} // holds a signal that there is something to ring

	mu      sync.Mutex
	running bool
	used    time.Time    // when it was needed last
	numbers [slots]int64 // of the locks held now
	pending [slots]bool  // to be rung
	id      string       // of the session; empty: there is none
	list    string       // what tags answers; empty: to be made
}

func (r *ringer) init(b *bell) { r.bell, r.work = b, make(chan struct{}, 1) }

func base(id string, slot int) string { return fmt.Sprintf("%s%s/%d", lockPrefix, id, slot) }

// tag is the lock of a slot. It starts the ringer if there is none; until that is ready
// there is no tag.
func (r *ringer) tag(slot int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.need()
	if r.id == "" {
		return ""
	}
	return lockName(base(r.id, slot), r.numbers[slot])
}

func (r *ringer) tags() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.need()
	if r.id == "" {
		return "-"
	}
	if r.list == "" {
		names := make([]string, slots)
		for slot := range slots {
			names[slot] = lockName(base(r.id, slot), r.numbers[slot])
		}
		r.list = strings.Join(names, ",")
	}
	return r.list
}

// need keeps the ringer alive. The mutex is held.
func (r *ringer) need() {
	r.used = time.Now()
	if !r.running {
		r.running = r.bell.start(r.run)
	}
}

// own reports whether a lock is of this backend's slots.
func (r *ringer) own(base string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.id != "" && strings.HasPrefix(base, lockPrefix+r.id+"/")
}

func (r *ringer) ring(slot int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.id == "" {
		return
	}
	r.pending[slot] = true
	select {
	case r.work <- struct{}{}:
	default:
	}
}

// run keeps a session until it is not needed any more.
func (r *ringer) run() {
	for !r.finished() {
		err := r.session()
		r.forget()
		if err != nil {
			sleep(r.bell.ctx, ringerPause)
		}
	}
}

// finished is where the goroutine decides to end.
func (r *ringer) finished() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = r.bell.ctx.Err() == nil && time.Since(r.used) < ringerIdle
	return !r.running
}

// forget: there are no locks any more.
func (r *ringer) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.id, r.list, r.pending = "", "", [slots]bool{}
}

// session serves with one connection, until that fails or is not needed. The connection
// is closed then: it has locks, and a timeout of its own.
func (r *ringer) session() error {
	if !pin(r.bell.db) {
		return errors.New("the pool has no connection to spare")
	}
	defer unpin(r.bell.db)
	conn, err := r.bell.db.Conn(r.bell.ctx)
	if err != nil {
		return err
	}
	defer drop(conn)
	if err := r.open(conn); err != nil {
		return err
	}
	return r.serve(conn)
}

// open takes all locks.
func (r *ringer) open(conn *sql.Conn) error {
	ctx, cancel := context.WithTimeout(r.bell.ctx, ringTimeout)
	defer cancel()
	if _, err := conn.ExecContext(ctx, fmt.Sprintf("SET SESSION wait_timeout = %d", ringerLife)); err != nil {
		return err
	}
	var random [8]byte
	rand.Read(random[:])
	id := hex.EncodeToString(random[:])
	var calls []string
	for slot := range slots {
		calls = append(calls, "GET_LOCK('"+lockName(base(id, slot), 0)+"', 0)")
	}
	if err := allOne(ctx, conn, calls); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.id, r.numbers = id, [slots]int64{}
	return nil
}

// allOne wants 1 of each call.
func allOne(ctx context.Context, conn *sql.Conn, calls []string) error {
	var sum sql.NullInt64
	if err := conn.QueryRowContext(ctx, "SELECT "+strings.Join(calls, " + ")).Scan(&sum); err != nil {
		return err
	}
	if sum.Int64 != int64(len(calls)) {
		return errRingerBroken
	}
	return nil
}

func (r *ringer) serve(conn *sql.Conn) error {
	tick := time.NewTicker(ringerPing)
	defer tick.Stop()
	for {
		var err error
		select {
		case <-r.work:
			err = r.ringPending(conn)
		case <-tick.C:
			err = r.ping(conn)
		case <-r.bell.ctx.Done():
		}
		if err != nil || r.bell.ctx.Err() != nil || r.idle() {
			return err
		}
	}
}

func (r *ringer) ping(conn *sql.Conn) error {
	ctx, cancel := context.WithTimeout(r.bell.ctx, ringTimeout)
	defer cancel()
	return allOne(ctx, conn, []string{"1"})
}

func (r *ringer) idle() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Since(r.used) >= ringerIdle
}

// ringPending rings for all slots that are to be rung, in one statement: each new lock is
// taken before the old one is released, so that there is one at any time.
func (r *ringer) ringPending(conn *sql.Conn) error {
	ctx, cancel := context.WithTimeout(r.bell.ctx, ringTimeout)
	defer cancel()
	var calls []string
	rung := r.takePending()
	for slot, old := range rung {
		b := base(r.id, slot)
		calls = append(calls, "GET_LOCK('"+lockName(b, old+1)+"', 0)", "RELEASE_LOCK('"+lockName(b, old)+"')")
	}
	if len(calls) == 0 {
		return nil
	}
	if err := allOne(ctx, conn, calls); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for slot, old := range rung {
		r.numbers[slot] = old + 1
	}
	r.list = ""
	return nil
}

// takePending are the slots to be rung, with the numbers of their locks.
func (r *ringer) takePending() map[int]int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	rung := map[int]int64{}
	for slot, pending := range r.pending {
		if pending {
			rung[slot] = r.numbers[slot]
		}
	}
	r.pending = [slots]bool{}
	return rung
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
