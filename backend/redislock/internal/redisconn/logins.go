package redisconn

import (
	"context"
	"sync"
	"time"
)

// logins remembers for a moment that a login at a server has failed, and why. Each of a thousand callers would make a
// connection of its own otherwise, and ask for credentials. The zero value is ready, and safe for concurrent use.
type logins struct {
	mu  sync.Mutex
	err error
	at  time.Time
}

// refusalLife is for how long no login is tried after one that has failed.
const refusalLife = 250 * time.Millisecond

func (l *logins) failed(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err, l.at = err, time.Now()
}

// lately returns why a login has failed just now, or nil.
func (l *logins) lately() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil || time.Since(l.at) > refusalLife {
		return nil
	}
	return l.err
}

type credentials = func(ctx context.Context) (user, password string, err error)

// of returns credentials that are not asked for again right after a login has failed.
func (l *logins) of(ask credentials) credentials {
	if ask == nil {
		return nil
	}
	return func(ctx context.Context) (user, password string, err error) {
		if err := l.lately(); err != nil {
			return "", "", err
		}
		if user, password, err = ask(ctx); err != nil && ctx.Err() == nil {
			l.failed(err)
		}
		return user, password, err
	}
}
