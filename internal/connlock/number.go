package connlock

import (
	"context"
	"time"
)

// contestedTime is for how long a row that a link has found locked is written by others.
const contestedTime = time.Minute

// number writes the number of a hold through another connection, which may take as long as
// somebody keeps the row locked: the link is free for its other holds meanwhile. The link is asked
// once the number is written. If it has the lock then, no successor has got a smaller number.
func (b *Backend) number(ctx context.Context, h *hold, l Lock) (uint64, error) {
	if !l.SeparateNumber {
		b.contest(l.Key)
	}
	number, err := b.Dialect.Number(ctx, l, h.s.link.ID())
	if err != nil {
		return 0, err
	}
	b.calm(l.Key)
	return number, h.s.do(ctx, func(own context.Context) error {
		err := h.s.link.Confirm(own, l)
		if err != nil {
			h.s.check(err)
		}
		return err
	})
}

// giveBack ends a hold that was not granted.
func (b *Backend) giveBack(h *hold, cause error) {
	h.s.do(b.life, func(context.Context) error {
		h.s.undo(h.lock, cause)
		return nil
	})
	b.end(h)
}

// contest notes that somebody else has locked the row with a key's number: the next attempts don't let
// a link wait for it.
func (b *Backend) contest(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for k, since := range b.contested {
		if time.Since(since) > contestedTime {
			delete(b.contested, k)
		}
	}
	b.contested[key] = time.Now()
}

// calm notes that the row can be written.
func (b *Backend) calm(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.contested, key)
}

func (b *Backend) isContested(key string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	since, is := b.contested[key]
	return is && time.Since(since) < contestedTime
}
