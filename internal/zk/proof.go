package zk

import (
	"slices"
	"time"
)

// proof computes until when the session certainly lives at the servers.
//
// An answer from a server doesn't prove that. Only the leader ends sessions, and it counts from
// when it last heard of one. The other servers answer pings and reads themselves, and report active
// sessions to the leader twice per tick. A server that is cut off from the leader, or a leader that
// is cut off from the others, still answers for syncLimit ticks: 10 seconds with usual settings.
//
// So only answers to writes count, to which a majority has agreed. They prove that after the
// request was sent, the server was connected to the leader and the leader to a majority. What the
// same server had answered a quarter of the timeout earlier was reported to the leader by then,
// because the servers allow no timeout below two ticks. A leader that is elected later gives every
// session its full timeout again.
type proof struct {
	timeout time.Duration
	marks   []mark // thinned out
	until   time.Time
}

// mark is a request that was sent on this connection. The first mark is the handshake.
type mark struct {
	sent  time.Time
	known time.Time // when the server certainly had it
}

// Fractions of the timeout.
const (
	reportPart = 4  // after this the leader knows of a session that a server heard from
	beatPart   = 6  // a write is sent at least this often
	markPart   = 24 // the resolution of marks
)

// connected restarts the marks for a connection whose handshake was sent at a time.
func (p *proof) connected(at time.Time) { p.marks = append(p.marks[:0], mark{at, at}) }

// created is for a new session, whose creation is a write.
func (p *proof) created(at time.Time) {
	p.connected(at)
	p.until = at.Add(p.timeout)
}

// answered is for any request, sent at a time and answered now. Until now it may have been on its
// way.
func (p *proof) answered(at, now time.Time) {
	if at.Sub(p.marks[len(p.marks)-1].sent) >= p.timeout/markPart {
		p.marks = append(p.marks, mark{at, now})
	}
}

// agreed is for a write that was sent at a time and succeeded. The leader knows of a handshake at
// once.
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
