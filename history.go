package distlock

import (
	"time"

	"github.com/distlock/distlock/driver"
)

// history records what other processes did with a lock. It is kept for a name, even
// while no caller needs its queue.
type history struct {
	hash     uint64        // of the name
	refused  instant       // when another process was last seen to hold
	probed   instant       // when a contender last paused without a reason
	released instant       // when the lock was last given back to the backend
	rtt      time.Duration // of the last grant
}

// opening is the first step of a contender, before its first attempt.
type opening struct {
	arm   bool          // arm the watch, since the attempt is likely to be refused: that saves another one
	pause time.Duration // let others go first
}

// opening returns how the next contender begins. Where waiters have no queue at the backend, a process
// that has just released pauses, or else it would win nearly every race: its attempt follows its
// release while others are still being notified. If another process was seen lately, the pause is long
// enough to be notified of that process's release. Otherwise it is, now and then, just long enough to
// find out whether there is another process. The mutex of the lock's shard is held.
func (p *history) opening(e *env, mode Mode, now instant) opening {
	const lately, seldom = time.Second, 20 * time.Millisecond
	contended := now-p.refused < lately
	rtt := min(p.rtt, 10*time.Millisecond)
	switch {
	case e.caps.QueueingOf(mode) != driver.QueueNever:
		return opening{arm: contended}
	case now-p.released >= time.Millisecond:
		return opening{}
	case contended:
		return opening{arm: true, pause: 4*rtt + min(2*e.opts.HandoffWindow, 10*time.Millisecond)}
	case now-p.probed < seldom:
		return opening{}
	}
	p.probed = now
	if _, pushed := e.backend.(driver.Watcher); pushed {
		return opening{pause: 2*rtt + 100*time.Microsecond}
	}
	return opening{pause: min(2*e.caps.Poll, 2*time.Millisecond)}
}
