package redislock

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/layouts"
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
	if err := b.layout.CheckName(name); err != nil {
		return driver.Info{}, err
	}
	key := b.layout.Prefix + name
	seen, err := b.storage.Read(ctx, key)
	if err != nil {
		return driver.Info{}, b.fail("inspect", name, redisconn.Final(err, b.works.Load()))
	}
	info := b.layout.Info(name, seen)
	if info == nil {
		return driver.Info{}, b.fail("inspect", name, layouts.NoLock(key, "a "+seen.Kind))
	}
	return *info, nil
}

// Read runs the script that inspects.
func (s *scripted) Read(ctx context.Context, key string) (layouts.Snapshot, error) {
	sc, args := inspectString, []string(nil)
	keys := append(s.layout.Mode(driver.Read).Keys(nil, key, ""), s.layout.Counter(strings.TrimPrefix(key, s.layout.Prefix)))
	if s.layout.Redisson {
		sc, args = inspectHashes, []string{layouts.Tagged(key)}
		keys = append([]string{key, layouts.PermitsKey(key)}, s.layout.QueueKeys(key)...)
	}
	reply, err := s.run(ctx, sc, keys, args)
	if err != nil {
		return layouts.Snapshot{}, faultOf(key, err)
	}
	return readSnapshot(s.layout, reply)
}

func readSnapshot(l *layouts.Layout, reply any) (layouts.Snapshot, error) {
	list, ok := reply.([]any)
	if !ok || len(list) != 6 {
		return layouts.Snapshot{}, redisconn.ErrUnexpected
	}
	seen := layouts.Snapshot{
		Kind: redisconn.Text(list[0]), Now: time.Duration(redisconn.Integer(list[1])) * time.Microsecond,
		Left: redisconn.Integer(list[2]), Value: redisconn.Text(list[3]),
	}
	holders, _ := list[4].([]any)
	for _, h := range holders {
		if h, ok := h.([]any); ok && len(h) == 3 {
			seen.Holders = append(seen.Holders, layouts.Written{Name: redisconn.Text(h[0]), Left: redisconn.Integer(h[1]), Note: redisconn.Text(h[2])})
		}
	}
	waiters, _ := list[5].([]any)
	for _, w := range waiters {
		if w, ok := w.([]any); ok && len(w) == 2 {
			seen.Waiters = append(seen.Waiters, l.Waiter(redisconn.Text(w[0]), redisconn.Integer(w[1])))
		}
	}
	return seen, nil
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
		return fmt.Errorf("redislock: list: %w", redisconn.Final(redisconn.Explain(err), b.works.Load()))
	}
	shown := map[string]bool{}
	show := func(key string) bool {
		if shown[key] || !strings.HasPrefix(key, b.layout.Prefix+prefix) {
			return true
		}
		shown[key] = true
		return yield(strings.TrimPrefix(key, b.layout.Prefix))
	}
	for _, s := range servers {
		more, err := b.listServer(ctx, s, prefix, show)
		if err != nil {
			return fmt.Errorf("redislock: list: %w", redisconn.Final(err, b.works.Load()))
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
	pattern := glob(b.layout.Prefix+prefix) + "*"
	all := []*keyScan{{pattern, "string", "0"}, {b.layout.QueuePrefix + "*", "list", "0"}}
	if b.layout.Redisson {
		all = append(all, &keyScan{pattern, "hash", "0"})
	}
	return all
}

// listServer shows the names of one server's locks, and reports whether show wants more. All scans ask for
// a page in one round trip.
func (b *Backend) listServer(ctx context.Context, s *redisconn.Server, prefix string, show func(name string) bool) (more bool, err error) {
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
		return nil, redisconn.ErrUnexpected
	}
	p.cursor = redisconn.Text(list[0])
	if p.kind != "list" {
		return b.locks(ctx, p.kind, redisconn.Texts(list[1]))
	}
	for _, key := range redisconn.Texts(list[1]) {
		if name, ok := b.layout.QueueName(key); ok {
			names = append(names, name)
		}
	}
	return names, nil
}

// locks returns the locks among keys of one type. Each slot is queried by itself, all at once.
func (b *Backend) locks(ctx context.Context, kind string, keys []string) ([]string, error) {
	bySlot := map[int][]string{}
	for _, key := range keys {
		if b.layout.CheckName(strings.TrimPrefix(key, b.layout.Prefix)) == nil {
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
			found, err := b.storage.Locks(ctx, kind, some)
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

// Locks runs the script for keys of this type, which answers a 1 for each lock.
func (s *scripted) Locks(ctx context.Context, kind string, keys []string) (held []string, err error) {
	for some := range slices.Chunk(keys, listChunk) {
		sc, keys := listStrings, slices.Clone(some)
		switch {
		case kind == "hash":
			sc = listHashes
		case s.layout.Redisson:
			sc = listPermits
			for _, key := range some {
				keys = append(keys, layouts.PermitsKey(key))
			}
		}
		reply, err := s.run(ctx, sc, keys, nil)
		if err != nil {
			return nil, err
		}
		answers := redisconn.Text(reply)
		if len(answers) != len(some) {
			return nil, redisconn.ErrUnexpected
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
