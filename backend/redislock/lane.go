package redislock

import (
	"context"
)

// lane is a connection that a ferry has to itself, while it has something to send.
type lane struct {
	at   func(context.Context) (server, error)
	conn conn
}

func (l *lane) send(ctx context.Context, commands [][]string) []answer {
	if l.conn == nil {
		at, err := l.at(ctx)
		if err == nil {
			l.conn, err = at.conn(ctx)
		}
		if err != nil {
			return answers(len(commands), answer{err: err})
		}
	}
	got := l.conn.doAll(ctx, commands)
	if lostError(got) != nil {
		l.end(true)
	}
	return got
}

func (l *lane) rest() { l.end(false) }

func (l *lane) end(broken bool) {
	if l.conn != nil {
		l.conn.close(broken)
		l.conn = nil
	}
}
