package quorum

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
)

// maxListed bounds how many names List keeps in mind.
const maxListed = 1 << 20

// List yields the names that are held at a majority of the members. While members do
// not answer it also yields those that may be. It keeps the names in memory to count
// them, and refuses to count more than a million: give a longer prefix then.
func (b *Backend) List(ctx context.Context, prefix string, yield func(name string) bool) error {
	if err := b.begin(ctx); err != nil {
		return err
	}
	defer b.tasks.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l := &listing{b: b, count: map[string]int{}, names: make(chan string, 64), ends: make(chan answer, len(b.members)), yield: yield}
	for i, m := range b.members {
		b.tasks.Add(1)
		go func() {
			defer b.tasks.Done()
			l.ends <- answer{i, l.ask(ctx, m, prefix)}
		}()
	}
	return l.run(ctx, prefix)
}

// listing is one call of List.
type listing struct {
	b     *Backend
	count map[string]int
	names chan string
	ends  chan answer
	yield func(string) bool
}

// ask passes on what a member lists, until ctx ends.
func (l *listing) ask(ctx context.Context, m *member, prefix string) error {
	i, ok := m.Backend.(driver.Inspector)
	if !ok {
		return driver.ErrSkip
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.b.life, cancel)()
	err := i.List(ctx, prefix, func(name string) bool {
		select {
		case l.names <- name:
			return true
		case <-ctx.Done():
			return false
		}
	})
	if err == nil {
		err = ctx.Err()
	}
	return err
}

func (l *listing) run(ctx context.Context, prefix string) error {
	t, skips := tally{of: len(l.b.members)}, 0
	var late <-chan time.Time
	for t.answered()+skips < t.of {
		select {
		case name := <-l.names:
			if stop, err := l.add(name); stop {
				return err
			}
			continue
		case a := <-l.ends:
			if errors.Is(a.err, driver.ErrSkip) {
				skips++
			} else {
				t.add(l.b.members[a.member], a.err)
			}
			if t.yes == l.b.majority {
				late = time.After(l.b.timeout(0))
			}
			continue
		case <-late:
		case <-ctx.Done():
			return fmt.Errorf("quorum: list: %w", ctx.Err())
		}
		break
	}
	if stop, err := l.drain(); stop {
		return err
	}
	switch {
	case skips > t.of-l.b.majority:
		return driver.ErrSkip
	case t.yes < l.b.majority:
		return t.unknown("list", prefix)
	}
	l.rest(t.of - t.yes)
	return nil
}

// drain takes what was sent before the members ended.
func (l *listing) drain() (stop bool, err error) {
	for {
		select {
		case name := <-l.names:
			if stop, err := l.add(name); stop {
				return stop, err
			}
		default:
			return false, nil
		}
	}
}

// add counts a name, and yields it when a majority has it.
func (l *listing) add(name string) (stop bool, err error) {
	if len(l.count) >= maxListed {
		return true, fmt.Errorf("%w: quorum: list: more than %d names: want a longer prefix", driver.ErrInvalid, maxListed)
	}
	l.count[name]++
	return l.count[name] == l.b.majority && !l.yield(name), nil
}

// rest yields what a majority may have if the members that did not answer have it.
func (l *listing) rest(unheard int) {
	for name, n := range l.count {
		if n < l.b.majority && n+unheard >= l.b.majority && !l.yield(name) {
			return
		}
	}
}
