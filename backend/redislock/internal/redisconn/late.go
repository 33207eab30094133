package redisconn

import (
	"context"
	"time"
)

// minAnswerTime is granted to every answer: a caller whose time is almost over is no reason for a
// new connection.
const minAnswerTime = 100 * time.Millisecond

// maxFormer is how many connections that are silent are kept beside the one in use, until their answers are out of time: two that die
// in silence, one after the other, must not cost a lease of three seconds.
const maxFormer = 3

// defaultTimeout is the timeout of an answer if there is none.
const defaultTimeout = 5 * time.Second

// lateTimer fires when a server has been silent for too long for the requests behind those that it has not answered: for half of the
// time that one of them has. The owner's mutex guards it, but fire is called without.
type lateTimer struct {
	limit time.Duration // of a caller without a deadline
	fire  func()

	patience time.Duration // with the server; zero: nobody waits
	timer    *time.Timer
}

// waits notes that a caller with this context waits for a server that has been silent since then.
func (l *lateTimer) waits(ctx context.Context, since time.Time) {
	has := l.limit
	if end, ok := ctx.Deadline(); ok {
		has = min(has, time.Until(end))
	}
	// A timer for each caller would cost more. A little later is soon enough.
	patience := max(has/2, minAnswerTime)
	if l.patience > 0 && l.patience < patience+patience/4 {
		return
	}
	l.patience = patience
	l.arm(since)
}

func (l *lateTimer) arm(since time.Time) {
	left := time.Until(since.Add(l.patience))
	if l.timer == nil {
		l.timer = time.AfterFunc(left, l.fire)
		return
	}
	l.timer.Reset(left)
}

// nobody notes that no caller waits.
func (l *lateTimer) nobody() { l.patience = 0 }

// due reports whether a server that has been silent since then is late. If it may become so, the timer goes on.
func (l *lateTimer) due(since time.Time) bool {
	if l.patience == 0 {
		return false
	}
	if time.Since(since) >= l.patience {
		return true
	}
	l.arm(since)
	return false
}
