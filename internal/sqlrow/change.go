package sqlrow

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/distlock/distlock/internal/unsent"
)

// maxMisses is how often a change may find that somebody else was faster. Each miss is a
// change of somebody else's that worked.
const (
	maxMisses = 24
	maxPause  = 32 * time.Millisecond
)

// errBusy says that the row was changed by others, or locked, whenever it was to be written.
var errBusy = errors.New("others change the row of this lock all the time, or keep it locked: nothing was done")

// decision is what a decision leads to.
type decision struct {
	write bool  // the state was changed
	frees bool  // and that may let others in
	err   error // the answer, once it is written
}

// change reads name's row, lets decide change it, and writes it if nobody changed it in the
// meantime; else it starts again. Callers of this process take turns.
func (b *Backend) change(ctx context.Context, name string, decide func(*state) decision) error {
	leave, err := b.changing.Lock(ctx, KeyOf(name))
	if err != nil {
		return err
	}
	defer leave()
	var took time.Duration // by the slowest statement
	for miss := range maxMisses {
		if err := Pause(ctx, miss); err != nil {
			return err
		}
		asked := time.Now()
		s, err := b.look(ctx, name)
		if err != nil {
			return unsent.Mark(err) // nothing was written yet
		}
		took = max(took, time.Since(asked))
		s.leeway = minLeeway + 2*took
		asked = time.Now()
		done, err := b.writeDecision(ctx, name, s, decide(s))
		took = max(took, time.Since(asked))
		if done || err != nil {
			return err
		}
	}
	return errBusy
}

// minLeeway is how long after a row was read it may be written, beside twice what a
// statement takes. If another server wrote it, its clock differs by no more than that, and by
// nothing in the direction in which living claims would seem to have ended.
const minLeeway = 250 * time.Millisecond

// Pause lets others finish after a miss: the more there seem to be, the longer.
func Pause(ctx context.Context, misses int) error {
	if misses == 0 {
		return ctx.Err()
	}
	t := time.NewTimer(rand.N(min(time.Millisecond<<misses, maxPause)))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// look reads one row.
func (b *Backend) look(ctx context.Context, name string) (*state, error) {
	k := KeyOf(name)
	states, err := b.lookAll(ctx, []HoldKey{{Key: k}})
	if err != nil {
		return nil, err
	}
	return states(k)
}

// lookAll reads the rows of up to MaxExtend holds.
func (b *Backend) lookAll(ctx context.Context, holds []HoldKey) (func(Key) (*state, error), error) {
	keys := make([]Key, len(holds))
	for i, h := range holds {
		keys[i] = h.Key
	}
	now, rows, err := b.dialect.Look(ctx, keys)
	if err != nil {
		return nil, err
	}
	byKey := make(map[Key]Row, len(rows))
	for _, r := range rows {
		byKey[r.Key] = r
	}
	return func(k Key) (*state, error) { return read(byKey[k], now) }, nil
}

// writeDecision writes what was decided. done is false if somebody else was faster.
func (b *Backend) writeDecision(ctx context.Context, name string, s *state, v decision) (done bool, err error) {
	if !v.write {
		return true, v.err
	}
	row, err := s.write(name)
	if err != nil {
		return false, err
	}
	waited := false
	if row.Rev == 0 {
		row.Rev = 1
		done, err = b.dialect.Insert(ctx, row)
	} else {
		done, waited, err = b.dialect.Swap(ctx, row, v.frees)
	}
	if err != nil || !done {
		return false, err
	}
	if v.frees {
		b.announce(row.Key, waited)
	}
	return true, v.err
}

// announce tells those who wait, here and elsewhere.
func (b *Backend) announce(k Key, waited bool) {
	b.Wake(k)
	if waited && b.notifier != nil {
		b.notifier.Notify(k)
	}
}
