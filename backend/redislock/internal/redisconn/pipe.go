package redisconn

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"time"
)

const (
	// aloneBytes fit into the buffers of any connection, so that writing them takes no time.
	aloneBytes = 16 << 10

	maxBatch = 64 << 10 // that is written at once, if it is more than one request
	maxOwed  = 1 << 20  // requests without an answer, in bytes

	fewSent = 32 // unanswered requests, up to which a writer waits for no others

	// lookUp is after how long a caller that reads its answer itself looks whether its context has ended, at the latest. Deadlines
	// that are much shorter made it slower.
	lookUp = 50 * time.Millisecond
)

// pipe is a connection that many share. The mutex of the multiplexer guards it, but what was read, which belongs to the goroutine that
// reads, and what is being written.
type pipe struct {
	*wire
	sent     []*request // unanswered, in the order of their commands
	head     int        // of sent
	batch    int        // how many of them, at the end, are just being written
	owed     int        // bytes of sent
	silent   time.Time  // since when there was no answer, while one is owed
	writing  bool       // a goroutine writes, until the queue is empty
	reading  bool       // a goroutine reads, until nothing is owed
	crowded  bool       // several requests were on their way lately
	admitted bool       // the server has answered something
	broken   error      // nil: it works

	out   []byte    // that is written
	got   []Answer  // to the first of sent
	until time.Time // the deadline of reads
}

// isIdle reports whether nothing is owed. The mutex is held, as below.
func (c *pipe) isIdle() bool { return !c.reading }

// takes reports whether more may be written. A connection that may be dead gets no more.
func (c *pipe) takes() bool {
	return c.owed == 0 || c.owed < maxOwed && time.Since(c.silent) < minAnswerTime
}

// fits reports whether x can be written without waiting.
func (c *pipe) fits(x *request) bool { return c.owed+x.size <= aloneBytes }

// patient reports whether a caller has the time to wait for lookUp.
func patient(ctx context.Context) bool {
	end, ok := ctx.Deadline()
	return !ok || time.Until(end) > lookUp
}

// takeSent removes all that is unanswered but the last n.
func (c *pipe) takeSent(n int) []*request {
	all := c.sent[c.head:]
	n = min(n, len(all))
	taken := all[:len(all)-n]
	c.sent, c.head = all[len(all)-n:], 0
	for _, x := range taken {
		c.owed -= x.size
	}
	return taken
}

// first removes the first that is unanswered.
func (c *pipe) first() *request {
	x := c.sent[c.head]
	c.sent[c.head] = nil
	c.head++
	c.owed -= x.size
	switch {
	case c.head == len(c.sent):
		c.sent, c.head = c.sent[:0], 0
	case c.head > 1000 && c.head > len(c.sent)/2:
		n := copy(c.sent, c.sent[c.head:])
		clear(c.sent[n:])
		c.sent, c.head = c.sent[:n], 0
	}
	return x
}

func (c *pipe) owes() bool { return c.head < len(c.sent) }

// receive reads the answers to the n commands of the first request, and goes on where an earlier call has ended.
func (c *pipe) receive(n int) error {
	for len(c.got) < n {
		a, err := c.answer()
		if err != nil {
			return err
		}
		c.got = append(c.got, a)
	}
	return nil
}

// readUntil lets reads end at the latest at an instant, and reports whether that has passed. What is buffered needs no look at the
// clock.
func (c *pipe) readUntil(at time.Time) (late bool) {
	if c.in.buffered() && !c.until.IsZero() {
		return false
	}
	left := time.Until(at)
	atLeast := max(left, time.Millisecond)
	c.readWithin(atLeast/2, atLeast)
	return left <= 0
}

// readWithin lets reads end after a time between least and most. To set a deadline for each would cost more.
func (c *pipe) readWithin(least, most time.Duration) {
	now := time.Now()
	if left := c.until.Sub(now); left < least || left > most {
		c.until = now.Add(most)
		c.SetReadDeadline(c.until)
	}
}

// outOfTime reports whether a read ended by its deadline. Then it may go on.
func (c *pipe) outOfTime(err error) bool {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	c.until = time.Time{}
	return true
}

// unwritten removes and returns those at the end of the batch of which nothing is among the n bytes that were written.
func (c *pipe) unwritten(n int) []*request {
	all := c.sent[c.head:]
	at, begins := len(all), len(c.out)
	for at > max(len(all)-c.batch, 0) && begins-all[at-1].size >= n {
		at--
		begins -= all[at].size
		c.owed -= all[at].size
	}
	c.sent = c.sent[:c.head+at]
	return all[at:]
}

// request has commands that are sent together. The mutex of its multiplexer guards it, but its bytes until it is queued.
type request struct {
	bytes []byte // until they are written
	size  int
	n     int // the answers that it gets
	stage stage

	one Answer   // if n is 1
	all []Answer // otherwise
	err error    // in place of answers

	over  chan struct{} // receives once the request is over, unless its caller has given up
	later chan struct{} // is closed then; nil: the caller waits
}

type stage uint8

const (
	queued stage = iota // nothing of it was written
	sent                // some of it may have been written
	over                // answered, or failed
)

// requests are used again.
type requests struct{ pool sync.Pool }

// keptBytes is how large a buffer may be that is used again.
const keptBytes = 16 << 10

func (r *requests) get(commands ...[]string) *request {
	x, _ := r.pool.Get().(*request)
	if x == nil {
		x = &request{over: make(chan struct{}, 1)}
	}
	for _, c := range commands {
		x.bytes = appendCommand(x.bytes, c)
	}
	x.size, x.n, x.stage = len(x.bytes), len(commands), queued
	return x
}

// free takes back a request that nobody else knows any more.
func (r *requests) free(x *request) {
	x.one, x.all, x.err = Answer{}, nil, nil
	if x.bytes = x.bytes[:0]; cap(x.bytes) > keptBytes {
		x.bytes = nil
	}
	r.pool.Put(x)
}

// answered takes the answers, whose memory is used again.
func (x *request) answered(got []Answer) {
	x.stage = over
	if x.n == 1 {
		x.one = got[0]
		return
	}
	x.all = slices.Clone(got)
}

func (x *request) failed(err error) { x.stage, x.err = over, err }

// end lets the caller go on, or closes what others wait on for the end of a request that was given up. later is as it was when the
// request was over.
func (x *request) end(later chan struct{}) {
	if later != nil {
		close(later)
		return
	}
	x.over <- struct{}{}
}
