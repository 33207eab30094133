package zk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// logins are the logins of a session, by the scheme "digest". It uses each one that it ever had: nodes that it made with an
// earlier password belong to that. Conn.mu guards it.
type logins struct {
	known   []string // user:password, the latest last
	pending int      // how many of this connection have no answer yet: all other requests wait for them
	reading bool     // loginAgain reads the password
	readAt  time.Time
}

// requests returns all logins, for a new connection.
func (l *logins) requests() []*rpc {
	var list []*rpc
	for _, login := range l.known {
		list = append(list, loginRPC(login))
	}
	return list
}

func loginRPC(login string) *rpc {
	q := newRPC(opAuth, "")
	q.xid, q.internal = xidAuth, true
	q.frame = appendInt(q.frame, 0)
	q.frame = appendText(q.frame, "digest")
	q.frame = appendText(q.frame, login)
	return q
}

// maxLogins bounds the logins of a session whose password changes for ever: those of a year, if it changes each day.
const maxLogins = 400

// readLogin reads the user and the password, and reports whether they have changed.
func (c *Conn) readLogin(ctx context.Context) (changed bool, err error) {
	if c.cfg.Login == nil {
		return false, nil
	}
	user, password, err := c.cfg.Login(ctx)
	if err != nil {
		return false, fmt.Errorf("the login: %w", err)
	}
	login := user + ":" + password
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.logins.known); n > 0 && c.logins.known[n-1] == login {
		return false, nil
	}
	c.logins.known = slices.DeleteFunc(c.logins.known, func(old string) bool { return old == login })
	c.logins.known = append(c.logins.known, login)
	c.logins.known = c.logins.known[max(0, len(c.logins.known)-maxLogins):]
	return true, nil
}

// prepareLogin reads the login for a new connection, which has this time. A session that had one before does not need it: to
// stay alive must not depend on where passwords come from.
func (c *Conn) prepareLogin(ctx context.Context, timeout time.Duration) error {
	c.mu.Lock()
	had := len(c.logins.known) > 0
	c.mu.Unlock()
	if had {
		limited, cancel := context.WithTimeout(ctx, timeout/4)
		defer cancel()
		ctx = limited
	}
	if _, err := c.readLogin(ctx); err != nil && !had {
		return err
	}
	return nil
}

// loginPause is the least time between two readings of a password on one connection.
const loginPause = 500 * time.Millisecond

// loginAgain is for a right that was refused: the password may be another one by now. A login comes on top of those before it.
func (c *Conn) loginAgain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cfg.Login == nil || c.err != nil || c.logins.reading || time.Since(c.logins.readAt) < loginPause {
		return
	}
	c.logins.reading = true
	go func() {
		ctx, cancel := context.WithTimeout(c.ctx, maxAttemptTimeout)
		defer cancel()
		changed, _ := c.readLogin(ctx)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.logins.reading, c.logins.readAt = false, time.Now()
		if changed && c.err == nil && !c.closing {
			n := len(c.logins.known)
			c.queue = slices.Insert(c.queue, 0, loginRPC(c.logins.known[n-1]))
			c.logins.pending++
			c.toWrite.Notify()
		}
	}()
}

// failRefused fails the requests that wait for a login, after the server has refused it. The session lives on, and the next
// connection tries again.
func (c *Conn) failRefused(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = why
	c.logins.known = c.logins.known[max(0, len(c.logins.known)-1):] // it may be an earlier one that is refused
	waiting := c.queue
	c.queue = nil
	for _, q := range waiting {
		if q.internal || q.opcode == opCloseSession {
			c.queue = append(c.queue, q)
		} else {
			c.finish(q, why)
		}
	}
}

// setBroken records why there is no connection.
func (c *Conn) setBroken(why error) {
	if why == nil || errors.Is(why, context.Canceled) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = why
}
