package zk

import (
	"slices"
	"time"
)

// proof is until when the session certainly lives at the servers.
//
// That a server answers doesn't prove it. The leader alone ends sessions, and counts
// from when it last heard of one; the other servers answer pings and reads themselves,
// and tell the leader twice in a tick whom they heard from. One that is cut off from
// the leader, and a leader that is cut off from the others, go on answering for
// syncLimit ticks: 10 seconds with usual settings. So only answers count that a
// majority has agreed to, those to writes: they prove that the server was connected to
// the leader, and the leader to a majority, after the request was sent. What the same
// server had answered a quarter of the timeout earlier was told to the leader by then,
// if no timeout is below two ticks, which is the servers' own bound. A leader that is
// elected later gives every session its full timeout anew.
type proof struct {
	timeout time.Duration
	marks   []mark // thinned out
	until   time.Time
}

// mark is something that was sent on this connection. The first one is its handshake.
type mark struct {
	sent  time.Time
	known time.Time // when the server certainly had it
}

// Parts of the timeout.
const (
	reportPart = 4  // after this the leader knows whom a server heard from
	beatPart   = 6  // something is written at least this often
	markPart   = 24 // how exactly it is remembered when something was sent
)

// connected starts over for a connection whose handshake was sent at a time.
func (p *proof) connected(at time.Time) { p.marks = append(p.marks[:0], mark{at, at}) }

// created is for a new session: that is a write of its own.
func (p *proof) created(at time.Time) {
	p.connected(at)
	p.until = at.Add(p.timeout)
}

// answered is for anything that was sent at a time. Before the answer came it may have
// been on its way.
func (p *proof) answered(at, now time.Time) {
	if at.Sub(p.marks[len(p.marks)-1].sent) >= p.timeout/markPart {
		p.marks = append(p.marks, mark{at, now})
	}
}

// agreed is for a write that was sent at a time and done. A handshake is known to the
// leader at once.
func (p *proof) agreed(at time.Time) {
	reported := at.Add(-p.timeout / reportPart)
	later := 1
	for later < len(p.marks) && !p.marks[later].known.After(reported) {
		later++
	}
	p.marks = slices.Delete(p.marks, 0, later-1)
	if until := p.marks[0].sent.Add(p.timeout); until.After(p.until) {
		p.until = until
	}
}
