package redisconn

import (
	"cmp"
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"time"
)

// sendAlone writes a request and reads its answer in the goroutine of its caller, while nobody else needs the connection: that is
// quicker than to be woken by another goroutine. The mutex is held at first, and not at the end.
func (m *multiplexer) sendAlone(ctx context.Context, c *pipe, x *request) error {
	c.reading, c.writing = true, true
	works := m.take(c, aloneBytes) && m.writeOut(c)
	c.writing = false
	m.writeMore(c)
	m.mu.Unlock()
	if !works {
		return m.await(ctx, x)
	}
	c.readWithin(lookUp/2, lookUp)
	err := c.receive(x.n)
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case c.broken == nil && err == nil && m.answered(c) == x:
		if c.crowded = c.owes(); c.crowded {
			go m.read(c)
		} else {
			m.endReading(c)
		}
		return nil
	case c.broken == nil && c.outOfTime(err):
		go m.read(c)
	case c.broken == nil:
		m.fail(c, err)
	}
	m.mu.Unlock()
	defer m.mu.Lock()
	return m.await(ctx, x)
}

// writeMore begins to write what is queued, in another goroutine.
func (m *multiplexer) writeMore(c *pipe) {
	if len(m.queue) == 0 || c.writing || c != m.current {
		return
	}
	if !c.takes() {
		m.late.waits(context.Background(), c.silent)
		return
	}
	c.writing = true
	go m.writeLater(c)
	if len(c.sent)-c.head > fewSent {
		// What was started last runs first, and sends the one before it behind the callers that were just answered: they have more to
		// write. runtime.Gosched would send it behind all goroutines of a busy program.
		go func() {}()
	}
}

func (m *multiplexer) writeLater(c *pipe) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.write(c)
}

// write writes what is queued as long as there is any.
func (m *multiplexer) write(c *pipe) {
	c.writing = true
	for m.writeBatch(c, min(c.owed+maxBatch, maxOwed)) {
	}
	c.writing = false
	m.writeMore(c)
}

// writeBatch writes some of what is queued, until so many bytes are owed. It reports whether it could.
func (m *multiplexer) writeBatch(c *pipe, owed int) bool {
	if !m.take(c, owed) {
		return false
	}
	if !c.reading {
		c.reading = true
		go m.read(c)
	}
	return m.writeOut(c)
}

// take moves requests from the queue into a batch, until so many bytes are owed. It reports whether there are any. An idle connection
// that the server has ended takes none: they go to another.
func (m *multiplexer) take(c *pipe, owed int) bool {
	if c.broken != nil || c != m.current || len(m.queue) == 0 || !c.takes() {
		return false
	}
	if c.owed == 0 {
		if c.admitted && c.peek.closed() {
			m.fail(c, net.ErrClosed)
			return false
		}
		c.silent = time.Now()
	}
	c.out, c.batch = c.out[:0], 0
	c.sent, c.head = slices.Delete(c.sent, 0, c.head), 0
	for _, x := range m.queue {
		if c.batch > 0 && c.owed+x.size > owed {
			break
		}
		if c.batch == 0 && x.size > maxBatch {
			c.out, x.bytes = x.bytes, nil
		} else {
			c.out = append(c.out, x.bytes...)
		}
		x.stage = sent
		c.batch++
		c.owed += x.size
		c.sent = append(c.sent, x)
	}
	c.crowded = c.batch > 1 || len(c.sent) > 1
	m.setQueue(slices.Delete(m.queue, 0, c.batch))
	return true
}

// writeOut writes the batch, without the mutex. If that fails, nothing was sent of what no byte was written of.
func (m *multiplexer) writeOut(c *pipe) bool {
	m.mu.Unlock()
	n, err := c.Write(c.out)
	m.mu.Lock()
	if err = cmp.Or(err, c.broken); err != nil {
		for _, x := range c.unwritten(n) {
			x.fail(unwritten(err))
			x.end(x.later)
		}
		c.batch = 0
		m.fail(c, err)
		return false
	}
	c.batch = 0
	if cap(c.out) > 2*maxBatch {
		c.out = nil
	}
	return true
}

// read reads answers as long as any is owed. The caller that gets the last one finds the connection idle, and another goroutine
// may read then.
func (m *multiplexer) read(c *pipe) {
	var x *request // was answered
	var later chan struct{}
	m.mu.Lock()
	for c.broken == nil && c.owes() {
		n, silent := c.sent[c.head].n, c.silent
		m.mu.Unlock()
		if x != nil {
			x.end(later)
			x = nil
		}
		late := c.readUntil(silent.Add(m.timeout))
		err := c.receive(n)
		m.mu.Lock()
		switch {
		case c.broken != nil:
		case err == nil:
			if x = m.answered(c); x != nil {
				later = x.later
			}
		case !c.outOfTime(err), late: // once more, if this process was paused and the answer is there
			m.fail(c, err)
		}
	}
	m.endReading(c)
	m.mu.Unlock()
	if x != nil {
		x.end(later)
	}
}

// answered gives the first request its answers, and returns it. It returns nil if the server has refused us.
func (m *multiplexer) answered(c *pipe) *request {
	if !c.admitted {
		if re, is := c.got[0].Err.(*ReplyError); is && re.tooMany() {
			m.fail(c, re) // and has not looked at anything
			return nil
		}
		c.admitted = true
	}
	x := c.first()
	x.stage, x.answers, c.got = over, c.got, nil
	if c.owes() && !c.in.buffered() {
		c.silent = time.Now()
	}
	if c == m.current && FirstError(x.answers) != nil && slices.ContainsFunc(x.answers, isReadOnly) {
		m.replace() // the address may lead to another server by now
	}
	m.writeMore(c)
	return x
}

// isReadOnly reports whether the server is a replica.
func isReadOnly(a Answer) bool {
	re, is := a.Err.(*ReplyError)
	return is && re.HasCode("READONLY")
}

func (m *multiplexer) endReading(c *pipe) {
	c.reading = false
	switch {
	case c.broken == nil && c.in.buffered():
		m.fail(c, errUnasked)
	case c != m.current:
		m.forget(c)
	}
}

const (
	// aloneBytes is how much a caller writes itself. It fits into the buffers of any connection, so that writing takes no time.
	aloneBytes = 16 << 10

	// maxBatch is how many bytes are written at once, but for a single request that is larger.
	maxBatch = 64 << 10

	// maxOwed is how many bytes of requests may be without an answer.
	maxOwed = 1 << 20

	// fewSent is up to how many unanswered requests a writer does not wait for the callers that were just answered.
	fewSent = 32

	// lookUp is how often a caller that reads its own answer checks whether its context has ended. Much shorter deadlines made
	// reading slower.
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

// takes reports whether more may be written. A connection that may be dead gets no more. The mutex is held, as below.
func (c *pipe) takes() bool {
	return c.owed == 0 || c.owed < maxOwed && time.Since(c.silent) < minAnswerTime
}

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
	return x
}

func (c *pipe) owes() bool { return c.head < len(c.sent) }

// receive reads the answers to the n commands of the first request, and goes on where an earlier call has ended.
func (c *pipe) receive(n int) error {
	if c.got == nil {
		c.got = make([]Answer, 0, n)
	}
	for len(c.got) < n {
		a, err := c.in.answer()
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

	answers []Answer

	over  chan struct{} // receives once the request is over, unless its caller has given up
	later chan struct{} // is closed then; nil: the caller waits
}

type stage uint8

const (
	queued stage = iota // nothing of it was written
	sent                // some of it may have been written
	over                // answered, or failed
)

// keptBytes is how large a buffer may be that is used again.
const keptBytes = 16 << 10

// request returns a request for commands, and uses the memory of an earlier one.
func (m *multiplexer) request(commands [][]string) *request {
	x := m.requests.Get().(*request)
	for _, c := range commands {
		x.bytes = appendCommand(x.bytes, c)
	}
	x.size, x.n, x.stage = len(x.bytes), len(commands), queued
	return x
}

// free takes back a request that nobody else knows any more.
func (m *multiplexer) free(x *request) {
	x.answers = nil
	if x.bytes = x.bytes[:0]; cap(x.bytes) > keptBytes {
		x.bytes = nil
	}
	m.requests.Put(x)
}

// fail answers all commands with an error.
func (x *request) fail(err error) { x.stage, x.answers = over, FailAll(x.n, err) }

// end lets the caller go on, or closes what others wait on for the end of a request that was given up. later is as it was when the
// request was over.
func (x *request) end(later chan struct{}) {
	if later != nil {
		close(later)
		return
	}
	x.over <- struct{}{}
}
