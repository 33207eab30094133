package redislock

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/distlock/distlock/driver"
)

// List finds the locks that are held or waited for, by looking at all keys of the
// database in turn: it is for people and not for programs. It shows what has the form of
// a lock. A lock that another program took with SET NX has none, and a key that merely
// looks like one of Redisson's locks is shown: Inspect tells more.
func (b *Backend) List(ctx context.Context, prefix string, yield func(name string) bool) error {
	if b.closed.Load() {
		return driver.ErrClosed
	}
	servers, err := b.client.all(ctx)
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
		more, err := b.listOne(ctx, s, glob(b.prefix+prefix), b.locks, show)
		if more && err == nil {
			more, err = b.listOne(ctx, s, b.layout.linePrefix, b.lined, show)
		}
		if err != nil {
			return fmt.Errorf("redislock: list: %w", err)
		}
		if !more {
			return nil
		}
	}
	return nil
}

// listOne shows the names that find tells of the keys of one server that begin with
// pattern; more: show wants it.
func (b *Backend) listOne(ctx context.Context, s server, pattern string, find func(context.Context, []string) ([]string, error), show func(name string) bool) (more bool, err error) {
	for cursor := "0"; ; {
		keys, next, err := b.scan(ctx, s, cursor, pattern)
		if err != nil {
			return false, err
		}
		names, err := find(ctx, keys)
		if err != nil {
			return false, err
		}
		for _, name := range names {
			if !show(name) {
				return false, nil
			}
		}
		if cursor = next; cursor == "0" {
			return true, nil
		}
	}
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

func (b *Backend) scan(ctx context.Context, s server, cursor, pattern string) (keys []string, next string, err error) {
	reply, err := s.do(ctx, []string{"SCAN", cursor, "MATCH", pattern + "*", "COUNT", "500"})
	if err != nil {
		return nil, "", explain(err)
	}
	list, ok := reply.([]any)
	if !ok || len(list) != 2 {
		return nil, "", errAnswer
	}
	return texts(list[1]), text(list[0]), nil
}

// locks are those of keys that are locks. Keys of several slots are asked for at once,
// each slot's by a script of its own.
func (b *Backend) locks(ctx context.Context, keys []string) ([]string, error) {
	bySlot := map[int][]string{}
	for _, key := range keys {
		if b.checkName(strings.TrimPrefix(key, b.prefix)) == nil {
			slot := b.client.slot(key)
			bySlot[slot] = append(bySlot[slot], key)
		}
	}
	var mu sync.Mutex
	var held []string
	var failed error
	var wg sync.WaitGroup
	for _, some := range bySlot {
		wg.Go(func() {
			found, err := b.locksOfSlot(ctx, some)
			mu.Lock()
			defer mu.Unlock()
			held, failed = append(held, found...), cmp.Or(failed, err)
		})
	}
	wg.Wait()
	return held, failed
}

func (b *Backend) locksOfSlot(ctx context.Context, keys []string) ([]string, error) {
	if b.scriptless != nil {
		return b.scriptless.locks(ctx, keys)
	}
	pairs := make([]string, 0, 2*len(keys))
	for _, key := range keys {
		pairs = append(pairs, key, permitsKey(key))
	}
	reply, err := b.run(ctx, listScript, pairs, nil)
	if err != nil {
		return nil, err
	}
	answers := text(reply)
	if len(answers) != len(keys) {
		return nil, errAnswer
	}
	var held []string
	for i, key := range keys {
		if answers[i] == '1' {
			held = append(held, key)
		}
	}
	return held, nil
}

var globEscape = strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `\`, `\\`)

// glob is a pattern that matches just s.
func glob(s string) string { return globEscape.Replace(s) }
