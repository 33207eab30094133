package redislock

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
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
	s, err := b.storage.readKey(ctx, n)
	if err != nil {
		return driver.Info{}, b.fail("inspect", name, b.faultOf(name, err))
	}
	if !b.layout.isLock(s) {
		return driver.Info{}, b.fail("inspect", name, b.noLock(name, "a "+s.kind))
	}
	info := driver.Info{Name: name, WaiterCount: -1}
	switch s.kind {
	case "string":
		if b.layout.span > 1 { // otherwise the free permits of a semaphore without holders
			info.Mode, info.Holders = driver.Exclusive, []driver.Holder{b.layout.stringHolder(s.value, s.now, s.left)}
		}
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

// readKey runs the script that inspects.
func (s scripted) readKey(ctx context.Context, key string) (snapshot, error) {
	reply, err := s.run(ctx, inspectScript, callOf(append([]string{key, permitsKey(key)}, s.layout.queueKeys(key)...), []string{tagged(key)}))
	if err != nil {
		return snapshot{}, err
	}
	return readSnapshot(reply)
}

// isLock tells locks of this layout from other data. Locks of other libraries are locks too.
func (l *layout) isLock(s snapshot) bool {
	redisson := l.span == 1
	switch s.kind {
	case "none", "semaphore":
		return true
	case "string":
		_, err := strconv.Atoi(s.value)
		return !redisson && isLockString(s.value, s.left) || redisson && err == nil && s.left == -1 // free permits
	case "hash":
		return (s.value == "read" || s.value == "write") && s.left != -1 ||
			redisson && s.value == "" && len(s.holders) == 1 && fieldForm().MatchString(s.holders[0].written)
	}
	return false
}

func readSnapshot(reply any) (snapshot, error) {
	list, ok := reply.([]any)
	if !ok || len(list) != 6 {
		return snapshot{}, errAnswer
	}
	s := snapshot{kind: text(list[0]), now: time.Duration(integer(list[1])) * time.Microsecond,
		left: integer(list[2]), value: text(list[3])}
	holders, _ := list[4].([]any)
	for _, h := range holders {
		if h, ok := h.([]any); ok && len(h) == 3 {
			s.holders = append(s.holders, holderRecord{text(h[0]), integer(h[1]), text(h[2])})
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

// stringHolder reads the value of a string lock, of distlock or of another program.
func (l *layout) stringHolder(value string, now time.Duration, left int64) driver.Holder {
	h := driver.Holder{Mode: driver.Exclusive, Held: -1, Left: lifeLeft(left)}
	if !noteForm().MatchString(value) || !l.readNote(value, now, &h) {
		h.Owner, h.Foreign = value, true
	}
	return h
}

func (b *Backend) showSemaphore(info *driver.Info, s snapshot) {
	for _, p := range s.holders {
		b.show(info, driver.Counted, permitOwner(p.written), p, s.now)
	}
	if free, err := strconv.Atoi(s.value); err == nil && len(info.Holders) > 0 {
		info.Mode, info.Limit = driver.Counted, free+len(info.Holders)
	}
}

func (b *Backend) showHash(info *driver.Info, s snapshot) {
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

func (b *Backend) show(info *driver.Info, mode driver.Mode, owner string, s holderRecord, now time.Duration) {
	h := driver.Holder{Held: -1}
	if !b.layout.readNote(s.note, now, &h) || h.Owner != owner {
		h = driver.Holder{Held: -1}
	}
	h.Owner, h.Mode, h.Left = owner, mode, lifeLeft(s.left)
	info.Holders = append(info.Holders, h)
}

// lifeLeft reads PTTL's answer: -1 if the key has no TTL.
func lifeLeft(ms int64) time.Duration {
	if ms < 0 || ms > math.MaxInt64/int64(time.Millisecond) {
		return -1
	}
	return time.Duration(ms) * time.Millisecond
}

// List finds the locks that are held or waited for, by looking at all keys of the
// database in turn: it is for people and not for programs. It shows keys in the form of
// a lock of this layout. That leaves out locks that another program took with SET NX, and
// includes keys that merely look like Redisson's locks: Inspect tells more.
//
// The server leaves out keys without the prefix, and of other types. One command reads 250
// strings, and one or two a hash.
func (b *Backend) List(ctx context.Context, prefix string, yield func(name string) bool) error {
	if b.closed.Load() {
		return driver.ErrClosed
	}
	servers, err := b.client.All(ctx)
	if err != nil {
		return fmt.Errorf("redislock: list: %w", redisconn.Explain(err))
	}
	shown := map[string]bool{}
	show := func(key string) bool {
		if shown[key] || !strings.HasPrefix(key, b.prefix+prefix) {
			return true
		}
		shown[key] = true
		return yield(strings.TrimPrefix(key, b.prefix))
	}
	for _, s := range servers {
		more, err := b.listServer(ctx, s, prefix, show)
		if err != nil {
			return fmt.Errorf("redislock: list: %w", err)
		}
		if !more {
			return nil
		}
	}
	return nil
}

// keyScan is a scan over a server's keys of one type.
type keyScan struct{ pattern, kind, cursor string }

// keyScans returns the scans that find all locks. The server leaves out other types, so that a
// key of another program costs nothing beyond its part of a page.
func (b *Backend) keyScans(prefix string) []*keyScan {
	pattern := glob(b.prefix+prefix) + "*"
	all := []*keyScan{{pattern, "string", "0"}, {b.layout.queuePrefix + "*", "list", "0"}}
	if b.caps.Modes.Has(driver.Write) {
		all = append(all, &keyScan{pattern, "hash", "0"})
	}
	return all
}

// listServer shows the names of one server's locks, and reports whether show wants more. All scans ask for
// a page in one round trip.
func (b *Backend) listServer(ctx context.Context, s redisconn.Server, prefix string, show func(name string) bool) (more bool, err error) {
	for running := b.keyScans(prefix); len(running) > 0; {
		var commands [][]string
		for _, p := range running {
			commands = append(commands, []string{"SCAN", p.cursor, "MATCH", p.pattern, "COUNT", "500", "TYPE", p.kind})
		}
		pages := s.DoAll(ctx, commands)
		var rest []*keyScan
		for i, p := range running {
			names, err := b.names(ctx, p, pages[i])
			if err != nil {
				return false, err
			}
			for _, name := range names {
				if !show(name) {
					return false, nil
				}
			}
			if p.cursor != "0" {
				rest = append(rest, p)
			}
		}
		running = rest
	}
	return true, nil
}

// names returns the names that a scan finds on a page.
func (b *Backend) names(ctx context.Context, p *keyScan, page redisconn.Answer) (names []string, err error) {
	if page.Err != nil {
		return nil, redisconn.Explain(page.Err)
	}
	list, ok := page.Reply.([]any)
	if !ok || len(list) != 2 {
		return nil, errAnswer
	}
	p.cursor = text(list[0])
	if p.kind != "list" {
		return b.locks(ctx, p.kind, texts(list[1]))
	}
	for _, key := range texts(list[1]) {
		if name, ok := nameOfQueue(key, b.layout.queuePrefix); ok {
			names = append(names, name)
		}
	}
	return names, nil
}

// locks returns the locks among keys of one type. Each slot is queried by itself, all at once.
func (b *Backend) locks(ctx context.Context, kind string, keys []string) ([]string, error) {
	bySlot := map[int][]string{}
	for _, key := range keys {
		if b.checkName(strings.TrimPrefix(key, b.prefix)) == nil {
			slot := b.client.Slot(key)
			bySlot[slot] = append(bySlot[slot], key)
		}
	}
	var mu sync.Mutex
	var held []string
	var failed error
	var wg wait.Group
	for _, some := range bySlot {
		wg.Go(func() {
			found, err := b.storage.locks(ctx, kind, some)
			mu.Lock()
			defer mu.Unlock()
			held, failed = append(held, found...), cmp.Or(failed, err)
		})
	}
	wg.Wait()
	return held, failed
}

// listChunk is how many values one script reads at most. They may be large, and the server
// does nothing else meanwhile.
const listChunk = 250

// locks runs the script for keys of this type, which answers a 1 for each lock.
func (s scripted) locks(ctx context.Context, kind string, keys []string) (held []string, err error) {
	for some := range slices.Chunk(keys, listChunk) {
		script, all, plain := listHashes, slices.Clone(some), s.layout.span == 1
		if kind == "string" {
			script, plain = listStrings, s.layout.span > 1
			for _, key := range some {
				all = append(all, permitsKey(key))
			}
		}
		reply, err := s.run(ctx, script, callOf(all, []string{bit(plain)}))
		if err != nil {
			return nil, err
		}
		answers := text(reply)
		if len(answers) != len(some) {
			return nil, errAnswer
		}
		for i, key := range some {
			if answers[i] == '1' {
				held = append(held, key)
			}
		}
	}
	return held, nil
}

var globEscape = strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `\`, `\\`)

// glob is a pattern that matches just s.
func glob(s string) string { return globEscape.Replace(s) }

// readNote fills in h from a note, and reports whether it is one.
func (l *layout) readNote(note string, now time.Duration, h *driver.Holder) bool {
	parts := strings.Split(strings.TrimPrefix(note, "+"), " ")
	if len(parts) != 3 || len(parts[0]) != ownerLen {
		return false
	}
	last, first, again := strings.Cut(parts[2], ",")
	if !again {
		first = last
	}
	fence := uint64(0)
	if last != "" { // clients without scripts do not know it
		var err error
		if fence, err = l.fence(last); err != nil {
			return false
		}
	}
	h.Owner, h.Fence, h.Meta = parts[0], fence, readMeta(parts[1])
	// The counter is at least the server's clock, so a hold is at least as old as
	// that says; a counter that is ahead of the clock says nothing.
	if since, err := number64(first); err == nil && time.Duration(since)*time.Microsecond <= now {
		h.Held = now - time.Duration(since)*time.Microsecond
	}
	return true
}

func readMeta(query string) map[string]string {
	values, err := url.ParseQuery(query)
	if err != nil || len(values) == 0 {
		return nil
	}
	meta := make(map[string]string, len(values))
	for key := range values {
		meta[key] = values.Get(key)
	}
	return meta
}

// maxToken is the length of the longest token that another library is expected to write.
const maxToken = 1024

const uuidForm = `[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}`

// The forms of what a lock's key stores. They are compiled on first use: that costs more than all else that
// the package does at the start of a program.
var (
	noteStart = form(`^` + uuidForm + ` $`)
	noteForm  = form(`^` + uuidForm + ` [^ ]* [0-9,-]*$`)
	fieldForm = form(`^` + uuidForm + `:-?[0-9]+$`)            // of Redisson's hashes
	tokenForm = form(`^(?:` + uuidForm + `|[0-9a-fA-F]{32})$`) // redis-py's may have no TTL
)

func form(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}

// isLockString reports whether a string may be a lock: distlock's own, or the token of another
// library or script. left is PTTL's answer. scripts/foreign.lua has the same rule.
//
// Tokens are arbitrary strings, so a string with a TTL counts as one unless it is a JSON object,
// or long. Without a TTL it has to look like one.
func isLockString(value string, left int64) bool {
	switch {
	case noteForm().MatchString(value):
		return true
	case left == -1:
		return tokenForm().MatchString(value)
	}
	return len(value) <= maxToken && !(strings.HasPrefix(value, "{") && strings.HasSuffix(value, "}"))
}

// noToken describes a string that is no token.
func noToken(left int64) string {
	if left == -1 {
		return "a string without a TTL"
	}
	return "a string that is no token"
}

// noLock returns the error for a key whose data are no lock of the requested kind.
func (s *store) noLock(name, data string) error {
	return fmt.Errorf("%w: the key %s holds %s: this is other data, or a lock in an unknown form; use another name, or keep locks apart from other data by a prefix, such as ?prefix=locks: in the URL, or Options.Prefix",
		driver.ErrInvalid, driver.Quote(s.prefix+name), data)
}
