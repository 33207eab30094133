package redisconn

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/internal/netaddr"
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

// ask returns the user and the password of a login; c may be nil.
func (l *logins) ask(ctx context.Context, c netaddr.Credentials) (user, password string, err error) {
	if c == nil {
		return "", "", nil
	}
	if user, password, err = c(ctx); err != nil && ctx.Err() == nil {
		l.failed(err)
	}
	return user, password, err
}

// refused returns why a server lets us not in, without the password. It remembers a wrong one.
func (l *logins) refused(err error, password string) error {
	re, is := AsReply(err)
	if !is {
		return err
	}
	if password != "" {
		re = &ReplyError{Text: strings.ReplaceAll(re.Text, password, "***")}
	}
	if re.HasCode("WRONGPASS") {
		l.failed(re)
	}
	return re
}
