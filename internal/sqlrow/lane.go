package sqlrow

import (
	"context"
	"sync"
)

// lanes let callers take turns, for each key.
type lanes struct {
	mu sync.Mutex
	m  map[Key]*lane
}

type lane struct {
	turn  chan struct{} // holds what one caller takes out
	users int
}

// enter waits for the caller's turn; leave ends it.
func (l *lanes) enter(ctx context.Context, k Key) (leave func(), err error) {
	n := l.join(k)
	select {
	case <-n.turn:
		return func() { n.turn <- struct{}{}; l.part(k, n) }, nil
	case <-ctx.Done():
		l.part(k, n)
		return nil, ctx.Err()
	}
}

func (l *lanes) join(k Key) *lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.m[k]
	if n == nil {
		n = &lane{turn: make(chan struct{}, 1)}
		n.turn <- struct{}{}
		if l.m == nil {
			l.m = map[Key]*lane{}
		}
		l.m[k] = n
	}
	n.users++
	return n
}

func (l *lanes) part(k Key, n *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n.users--; n.users == 0 {
		delete(l.m, k)
	}
}
