package connlock

import (
	"context"
	"time"
)

// lockedRowTime is for how long a row that a link has found locked is written by others.
const lockedRowTime = time.Minute

// writeNumber writes the number of a hold through another connection, which may take as long as
// somebody keeps the row locked: the link is free for its other holds meanwhile. The link is asked
// once the number is written. If it has the lock then, no successor has got a smaller number.
func (b *Backend) writeNumber(ctx context.Context, h *connHold, l Lock) (uint64, error) {
	if !l.SeparateNumber {
		b.noteRowLocked(l.Key)
	}
	number, err := b.Dialect.Number(ctx, l, h.conn.conn.ID())
	if err != nil {
		return 0, err
	}
	b.noteRowFree(l.Key)
	return number, h.conn.do(ctx, func(own context.Context) error {
		err := h.conn.conn.Confirm(own, l)
		if err != nil {
			h.conn.pingAfter(err)
		}
		return err
	})
}

// giveBack ends a hold that was not granted.
func (b *Backend) giveBack(h *connHold, cause error) {
	h.conn.do(b.life, func(context.Context) error {
		h.conn.undo(h.lock, cause)
		return nil
	})
	b.endHold(h)
}

// noteRowLocked notes that somebody else has locked the row with a key's number: the next attempts don't let
// a link wait for it.
func (b *Backend) noteRowLocked(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for k, since := range b.lockedRows {
		if time.Since(since) > lockedRowTime {
			delete(b.lockedRows, k)
		}
	}
	b.lockedRows[key] = time.Now()
}

// noteRowFree notes that the row can be written.
func (b *Backend) noteRowFree(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.lockedRows, key)
}

func (b *Backend) isRowLocked(key string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	since, is := b.lockedRows[key]
	return is && time.Since(since) < lockedRowTime
}
