package redisconn

import (
	"context"
	"time"
)

// minAnswerTime is what an answer may always take: a caller whose time is almost over is no
// reason to make a new connection.
const minAnswerTime = 100 * time.Millisecond

// lateTimer finds out when a request that is under way on a connection has had no answer for
// so long that those behind it must go on another one: for half of the time that one of
// them has. Its owner's mutex guards it, but for fire, which is called without.
type lateTimer struct {
	limit time.Duration // of a caller that has no deadline
	fire  func()

	began time.Time
	at    time.Time // zero: nobody waits
	timer *time.Timer
}

// begin: a request goes out. Behind it are others already if left.
func (o *lateTimer) begin(left bool) {
	o.began, o.at = time.Now(), time.Time{}
	if left {
		o.queued(context.Background())
	}
}

// queued: a caller with this context waits behind the request.
func (o *lateTimer) queued(ctx context.Context) {
	has := o.limit
	if end, ok := ctx.Deadline(); ok {
		has = min(has, time.Until(end))
	}
	// A timer for each caller would cost more than it is worth: a little later will do.
	at := o.began.Add(max(has/2, minAnswerTime))
	if !o.at.IsZero() && o.at.Before(at.Add(has/8)) {
		return
	}
	o.at = at
	if o.timer == nil {
		o.timer = time.AfterFunc(time.Until(at), o.fire)
		return
	}
	o.timer.Reset(time.Until(at))
}

// due reports whether somebody has waited for long enough.
func (o *lateTimer) due() bool { return !o.at.IsZero() && !time.Now().Before(o.at) }
