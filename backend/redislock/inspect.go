package redislock

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
)

// Inspect describes a lock, in one round trip. A lock that was not taken by distlock is
// shown with the value or field that it has in Redis as Owner.
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Info, error) {
	if b.closed.Load() {
		return driver.Info{}, driver.ErrClosed
	}
	if err := b.checkName(name); err != nil {
		return driver.Info{}, err
	}
	n := b.prefix + name
	s, err := b.look(ctx, n)
	if err != nil {
		return driver.Info{}, b.fail("inspect", name, err)
	}
	if !b.layout.isLock(s) {
		return driver.Info{}, b.fail("inspect", name, b.noLock(name, "a "+s.kind))
	}
	info := driver.Info{Name: name, WaiterCount: -1}
	switch s.kind {
	case "string":
		b.showString(&info, s)
	case "semaphore":
		b.showSemaphore(&info, s)
	case "hash":
		b.showHash(&info, s)
	}
	if len(s.waiters) > 0 {
		info.Waiters, info.WaiterCount = s.waiters, len(s.waiters)
	}
	return info, nil
}

func (b *Backend) look(ctx context.Context, name string) (sight, error) {
	if b.scriptless != nil {
		return b.scriptless.look(ctx, name)
	}
	reply, err := b.run(ctx, inspectScript, append([]string{name, permitsKey(name)}, b.layout.line(name)...), []string{tagged(name)})
	if err != nil {
		return sight{}, err
	}
	return readSight(reply)
}

// sight is what is to be seen of a name.
type sight struct {
	kind    string
	now     time.Duration // since 1970, by the server's clock
	left    int64         // ms, of the key
	value   string
	holders []seen
	waiters []driver.Holder
}

type seen struct {
	written string // field or permit id
	left    int64
	note    string
}

// isLock tells locks of this layout from other data. Those of other libraries are locks too.
func (l *layout) isLock(s sight) bool {
	redisson := l.span == 1
	switch s.kind {
	case "none", "semaphore":
		return true
	case "string":
		_, err := strconv.Atoi(s.value)
		return !redisson && isLockString(s.value, s.left) || redisson && err == nil && s.left == -1 // free permits
	case "hash":
		return (s.value == "read" || s.value == "write") && s.left != -1 ||
			redisson && s.value == "" && len(s.holders) == 1 && fieldForm.MatchString(s.holders[0].written)
	}
	return false
}

var errAnswer = errors.New("unexpected answer")

func readSight(reply any) (sight, error) {
	list, ok := reply.([]any)
	if !ok || len(list) != 6 {
		return sight{}, errAnswer
	}
	s := sight{kind: text(list[0]), now: time.Duration(integer(list[1])) * time.Microsecond,
		left: integer(list[2]), value: text(list[3])}
	holders, _ := list[4].([]any)
	for _, h := range holders {
		if h, ok := h.([]any); ok && len(h) == 3 {
			s.holders = append(s.holders, seen{text(h[0]), integer(h[1]), text(h[2])})
		}
	}
	waiters, _ := list[5].([]any)
	for _, w := range waiters {
		if w, ok := w.([]any); ok && len(w) == 2 {
			s.waiters = append(s.waiters, driver.Holder{Owner: ownerOf(text(w[0])), Mode: driver.Exclusive, Held: -1, Left: lifeLeft(integer(w[1]))})
		}
	}
	return s, nil
}

// lineOf are those who stand in the queue of a fair lock.
func lineOf(written []string) []driver.Holder {
	var waiters []driver.Holder
	for _, w := range written {
		waiters = append(waiters, driver.Holder{Owner: ownerOf(w), Mode: driver.Exclusive, Held: -1, Left: -1})
	}
	return waiters
}

// texts are the strings of a list.
func texts(v any) []string {
	list, _ := v.([]any)
	words := make([]string, len(list))
	for i, w := range list {
		words[i] = text(w)
	}
	return words
}

func text(v any) string   { s, _ := v.(string); return s }
func integer(v any) int64 { n, _ := v.(int64); return n }

// showString: a string is a lock of the SET NX world, or the free permits of a
// semaphore that nobody uses.
func (b *Backend) showString(info *driver.Info, s sight) {
	if b.layout.span == 1 {
		return
	}
	info.Mode = driver.Exclusive
	info.Holders = []driver.Holder{b.stringHolder(s.value, s.now, s.left)}
}

// stringHolder reads the value of a string lock: ours, or anybody's.
func (b *Backend) stringHolder(value string, now time.Duration, left int64) driver.Holder {
	h := driver.Holder{Mode: driver.Exclusive, Held: -1, Left: lifeLeft(left)}
	if !noteForm.MatchString(value) || !b.layout.readNote(value, now, &h) {
		h.Owner, h.Foreign = value, true
	}
	return h
}

func (b *Backend) showSemaphore(info *driver.Info, s sight) {
	for _, p := range s.holders {
		b.show(info, driver.Counted, permitOwner(p.written), p, s.now)
	}
	if free, err := strconv.Atoi(s.value); err == nil && len(info.Holders) > 0 {
		info.Mode, info.Limit = driver.Counted, free+len(info.Holders)
	}
}

func (b *Backend) showHash(info *driver.Info, s sight) {
	for _, f := range s.holders {
		mode := driver.Exclusive
		switch {
		case strings.HasSuffix(f.written, ":write"):
			mode = driver.Write
		case s.value != "":
			mode = driver.Read
		}
		b.show(info, mode, ownerOf(f.written), f, s.now)
		// A Java writer that also reads is a writer.
		if info.Mode != driver.Write {
			info.Mode = mode
		}
	}
}

func (b *Backend) show(info *driver.Info, mode driver.Mode, owner string, s seen, now time.Duration) {
	h := driver.Holder{Held: -1}
	if !b.layout.readNote(s.note, now, &h) || h.Owner != owner {
		h = driver.Holder{Held: -1}
	}
	h.Owner, h.Mode, h.Left = owner, mode, lifeLeft(s.left)
	info.Holders = append(info.Holders, h)
}

// lifeLeft is what PTTL answered.
func lifeLeft(ms int64) time.Duration {
	if ms < 0 || ms > math.MaxInt64/int64(time.Millisecond) {
		return -1
	}
	return time.Duration(ms) * time.Millisecond
}
