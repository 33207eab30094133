package redislock

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
)

// List finds the locks that are held or waited for, by looking at all keys of the
// database in turn: it is for people and not for programs. It shows what has the form of
// a lock in this layout. A lock that another program took with SET NX has none, and a key
// that merely looks like one of Redisson's locks is shown: Inspect tells more.
//
// The server leaves out keys without the prefix, and of other types. Strings are read by
// one command for 250 of them, and a hash by one or two.
func (b *Backend) List(ctx context.Context, prefix string, yield func(name string) bool) error {
	if b.closed.Load() {
		return driver.ErrClosed
	}
	servers, err := b.client.All(ctx)
	if err != nil {
		return fmt.Errorf("redislock: list: %w", explain(err))
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
		more, err := b.listOne(ctx, s, prefix, show)
		if err != nil {
			return fmt.Errorf("redislock: list: %w", err)
		}
		if !more {
			return nil
		}
	}
	return nil
}

// pass is a scan over a server's keys.
type pass struct {
	pattern, kind, cursor string // of the keys, their type, and how far it has come
	find                  func(ctx context.Context, keys []string) (names []string, err error)
}

// passes are the scans that find all locks. The server leaves out other types, so that a
// key of another program costs nothing beyond its part of a page.
func (b *Backend) passes(prefix string) []*pass {
	pattern := glob(b.prefix+prefix) + "*"
	all := []*pass{{pattern, "string", "0", b.inStrings}, {b.layout.linePrefix + "*", "list", "0", b.lined}}
	if b.scriptless == nil {
		all = append(all, &pass{pattern, "hash", "0", b.inHashes})
	}
	return all
}

// listOne shows the names of one server's locks; more: show wants more. All passes ask for
// a page in one trip.
func (b *Backend) listOne(ctx context.Context, s redisconn.Server, prefix string, show func(name string) bool) (more bool, err error) {
	byType := true
	for passes := b.passes(prefix); len(passes) > 0; {
		pages := s.DoAll(ctx, scans(passes, byType))
		if re, is := redisconn.AsReply(pages[0].Err); is && byType && strings.Contains(re.Text, "syntax error") {
			byType = false // which came with Redis 6.0
			continue
		}
		var rest []*pass
		for i, p := range passes {
			names, err := p.next(ctx, pages[i])
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
		passes = rest
	}
	return true, nil
}

// scans ask for the next page of each pass. Without byType there are keys of all types, which
// passes have to expect anyway: a key may change in between.
func scans(passes []*pass, byType bool) (commands [][]string) {
	for _, p := range passes {
		command := []string{"SCAN", p.cursor, "MATCH", p.pattern, "COUNT", "500"}
		if byType {
			command = append(command, "TYPE", p.kind)
		}
		commands = append(commands, command)
	}
	return commands
}

// next returns the names that p finds on a page.
func (p *pass) next(ctx context.Context, page redisconn.Answer) ([]string, error) {
	if page.Err != nil {
		return nil, explain(page.Err)
	}
	list, ok := page.Reply.([]any)
	if !ok || len(list) != 2 {
		return nil, errAnswer
	}
	p.cursor = text(list[0])
	return p.find(ctx, texts(list[1]))
}

// lined are the names whose lines the keys are.
func (b *Backend) lined(_ context.Context, keys []string) (names []string, err error) {
	for _, key := range keys {
		if name, ok := nameOfLine(key, b.layout.linePrefix); ok {
			names = append(names, name)
		}
	}
	return names, nil
}

// inStrings are those of keys that are locks kept in a string.
func (b *Backend) inStrings(ctx context.Context, keys []string) ([]string, error) {
	return b.locks(ctx, keys, func(keys []string) (any, error) {
		pairs := slices.Clone(keys)
		for _, key := range keys {
			pairs = append(pairs, permitsKey(key))
		}
		return b.run(ctx, listStrings, pairs, []string{bit(b.layout.span > 1)})
	})
}

// inHashes are those of keys that are locks kept in a hash.
func (b *Backend) inHashes(ctx context.Context, keys []string) ([]string, error) {
	return b.locks(ctx, keys, func(keys []string) (any, error) {
		return b.run(ctx, listHashes, keys, []string{bit(b.layout.span == 1)})
	})
}

// locks are those of keys that are locks. Keys of several slots are asked for at once,
// each slot's by a script of its own, whose answer has a 1 for each lock.
func (b *Backend) locks(ctx context.Context, keys []string, ask func(keys []string) (any, error)) ([]string, error) {
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
	var wg sync.WaitGroup
	for _, some := range bySlot {
		wg.Go(func() {
			found, err := b.locksOfSlot(ctx, some, ask)
			mu.Lock()
			defer mu.Unlock()
			held, failed = append(held, found...), cmp.Or(failed, err)
		})
	}
	wg.Wait()
	return held, failed
}

func (b *Backend) locksOfSlot(ctx context.Context, keys []string, ask func(keys []string) (any, error)) (held []string, err error) {
	if b.scriptless != nil {
		return b.scriptless.locks(ctx, keys)
	}
	for some := range slices.Chunk(keys, listChunk) {
		reply, err := ask(some)
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

// listChunk is how many values one script reads at most. They may be large, and the server
// does nothing else meanwhile.
const listChunk = 250

var globEscape = strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `\`, `\\`)

// glob is a pattern that matches just s.
func glob(s string) string { return globEscape.Replace(s) }
