package redislock

import (
	"context"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
)

// lane is a connection that a ferry has to itself, while it has something to send, to
// the server that has a key.
type lane struct {
	client redisconn.Client
	key    string
	conn   redisconn.DedicatedConn // nil: the next trip opens one
	at     redisconn.Server
	doubt  bool // whether that server has the key
}

func (l *lane) send(ctx context.Context, commands [][]string) []redisconn.Answer {
	if l.conn == nil {
		if err := l.open(ctx); err != nil {
			return redisconn.FailAll(len(commands), err)
		}
	}
	got := l.conn.DoAll(ctx, commands)
	broken := redisconn.TransportError(got) != nil
	for _, a := range got {
		l.doubt = l.doubt || broken || redisconn.NotExecuted(a.Err)
	}
	if l.doubt || l.replaced(ctx) {
		l.end(true)
	}
	return got
}

// replaced reports whether another server has the key now, which is the master: a lane
// that is never at rest must not stay with the one before for as long as that answers.
func (l *lane) replaced(ctx context.Context) bool {
	at, err := l.client.At(ctx, l.key)
	return err == nil && at != l.at
}

func (l *lane) kept() bool { return l.conn != nil }

// open connects. In doubt it asks for a change that changes nothing, which finds the
// right server: one that has the key, and is no replica.
func (l *lane) open(ctx context.Context) error {
	if l.doubt {
		if _, err := l.client.Do(ctx, l.key, []string{"DEL", tagged(l.key) + probeSuffix}); err != nil {
			return explain(err)
		}
		l.doubt = false
	}
	at, err := l.client.At(ctx, l.key)
	if err == nil {
		l.at = at
		l.conn, err = at.Dedicated(ctx)
	}
	l.doubt = err != nil
	return err
}

func (l *lane) rest() { l.end(false) }

func (l *lane) end(broken bool) {
	if l.conn != nil {
		l.conn.Close(broken)
		l.conn = nil
	}
}
