package sqlrow

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

const (
	// maxBatch is how many calls share one statement.
	maxBatch = 64

	// maxDelay is how long a call waits for the statement in flight. That may itself wait for a locked
	// row, or for a server that does not answer on its connection.
	maxDelay = 10 * time.Millisecond
)

// ErrUndone means that the server refused a statement, which has changed nothing.
var ErrUndone = errors.New("the statement was undone")

// batcher joins calls into one statement. A call is sent at once if no statement is in flight. Calls that
// come meanwhile share the next statement.
type batcher[Q, A any] struct {
	one  func(ctx context.Context, q Q) (A, error)
	all  func(ctx context.Context, batch []Q) ([]A, error) // nil: calls are not joined
	join func(first, other Q) bool                         // whether two calls may share a statement

	mu       sync.Mutex
	inFlight *statement // nil: none that calls wait for
	pending  []*pendingCall[Q, A]
	left     []*pendingCall[Q, A] // sent, but their callers' contexts have ended
	delay    *time.Timer          // calls flush; it runs while there are pending calls
}

// pendingCall is a call that waits for its statement.
type pendingCall[Q, A any] struct {
	ctx    context.Context
	query  Q
	sent   *statement // nil: not yet
	done   chan struct{}
	answer A
	err    error
}

// statement is a statement in flight.
type statement struct {
	waiting int // calls that want the answer
	cancel  context.CancelFunc
	over    bool
	ended   chan struct{} // closed when it is over
}

func newStatement(waiting int, cancel context.CancelFunc) *statement {
	return &statement{waiting: waiting, cancel: cancel, ended: make(chan struct{})}
}

// do sends a call, and returns its answer, or the error of ctx as soon as that ends.
func (b *batcher[Q, A]) do(ctx context.Context, q Q) (A, error) {
	if b.all == nil {
		return b.one(ctx, q)
	}
	b.mu.Lock()
	if b.inFlight == nil {
		s := newStatement(0, nil)
		b.inFlight = s
		b.mu.Unlock()
		defer b.finish(s)
		return b.one(ctx, q)
	}
	c := &pendingCall[Q, A]{ctx: ctx, query: q, done: make(chan struct{})}
	b.add(c)
	b.mu.Unlock()
	select {
	case <-c.done:
		return c.answer, c.err
	case <-ctx.Done():
		var none A
		return none, b.leave(c)
	}
}

// add adds a pending call. The mutex is held.
func (b *batcher[Q, A]) add(c *pendingCall[Q, A]) {
	b.pending = append(b.pending, c)
	if len(b.pending) > 1 {
		return
	}
	if b.delay == nil {
		b.delay = time.AfterFunc(maxDelay, b.overtake)
	} else {
		b.delay.Reset(maxDelay)
	}
}

// leave ends the wait of a call whose context has ended. A statement without calls is canceled.
func (b *batcher[Q, A]) leave(c *pendingCall[Q, A]) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.sent == nil {
		b.pending = slices.DeleteFunc(b.pending, func(p *pendingCall[Q, A]) bool { return p == c })
		return driver.Unsent(c.ctx.Err())
	}
	if c.sent.over {
		return c.ctx.Err()
	}
	b.left = append(b.left, c)
	if c.sent.waiting--; c.sent.waiting == 0 {
		c.sent.cancel()
	}
	return c.ctx.Err()
}

// settle waits for the statements of calls that match and whose contexts have ended.
func (b *batcher[Q, A]) settle(ctx context.Context, match func(Q) bool) error {
	for {
		c := b.findLeft(match)
		if c == nil {
			return nil
		}
		select {
		case <-c.sent.ended:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (b *batcher[Q, A]) findLeft(match func(Q) bool) *pendingCall[Q, A] {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.IndexFunc(b.left, func(c *pendingCall[Q, A]) bool { return match(c.query) })
	if i < 0 {
		return nil
	}
	return b.left[i]
}

// finish sends the pending calls after a statement has ended, unless others were sent meanwhile.
func (b *batcher[Q, A]) finish(s *statement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.over = true
	close(s.ended)
	b.left = slices.DeleteFunc(b.left, func(c *pendingCall[Q, A]) bool { return c.sent == s })
	if b.inFlight == s {
		b.flush()
	}
}

// overtake sends the pending calls although a statement is in flight.
func (b *batcher[Q, A]) overtake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.pending) > 0 {
		b.flush()
	}
}

// flush sends pending calls by one statement. The mutex is held.
func (b *batcher[Q, A]) flush() {
	b.inFlight = nil
	batch := b.next()
	if len(batch) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := newStatement(len(batch), cancel)
	b.inFlight = s
	for _, c := range batch {
		c.sent = s
	}
	if len(b.pending) > 0 {
		b.delay.Reset(maxDelay)
	} else {
		b.delay.Stop()
	}
	go func() {
		defer cancel()
		b.send(ctx, batch)
		b.finish(s)
	}()
}

// next takes the pending calls that the first one can share a statement with. The mutex is held.
func (b *batcher[Q, A]) next() (batch []*pendingCall[Q, A]) {
	b.pending = slices.DeleteFunc(b.pending, func(c *pendingCall[Q, A]) bool {
		apart := func(other *pendingCall[Q, A]) bool { return !b.join(other.query, c.query) }
		if len(batch) == maxBatch || slices.ContainsFunc(batch, apart) {
			return false
		}
		batch = append(batch, c)
		return true
	})
	return batch
}

// send runs the statement of a batch, and answers its calls. If the server refuses the statement, each call
// is sent by itself: the error may concern only one of them.
func (b *batcher[Q, A]) send(ctx context.Context, batch []*pendingCall[Q, A]) {
	if len(batch) == 1 {
		b.sendAlone(batch[0])
		return
	}
	queries := make([]Q, len(batch))
	for i, c := range batch {
		queries[i] = c.query
	}
	answers, err := b.all(ctx, queries)
	if errors.Is(err, ErrUndone) || driver.Final(err) {
		b.sendEach(batch)
		return
	}
	for i, c := range batch {
		if c.err = err; err == nil {
			c.answer = answers[i]
		}
		close(c.done)
	}
}

func (b *batcher[Q, A]) sendEach(batch []*pendingCall[Q, A]) {
	var wg wait.Group
	for _, c := range batch {
		wg.Go(func() { b.sendAlone(c) })
	}
	wg.Wait()
}

func (b *batcher[Q, A]) sendAlone(c *pendingCall[Q, A]) {
	if c.err = c.ctx.Err(); c.err == nil {
		c.answer, c.err = b.one(c.ctx, c.query)
	}
	close(c.done)
}

// joinCalls sets up the batchers.
func (b *Backend) joinCalls(d Dialect) {
	b.takes.one, b.takes.join = d.Take, TakeRequest.joins
	b.frees.join = func(h, other HoldKey) bool { return h.Name != other.Name }
	b.frees.one = func(ctx context.Context, h HoldKey) (f Freed, err error) {
		f.Freed, f.Waited, err = d.Free(ctx, h)
		return f, err
	}
	if d, ok := d.(BatchDialect); ok {
		b.takes.all, b.frees.all = d.TakeAll, d.FreeAll
	}
}

// joins reports whether two requests differ in Name and Owner only.
func (t TakeRequest) joins(other TakeRequest) bool {
	return t.Name != other.Name && t.Kind == other.Kind && t.TTL == other.TTL && t.Address == other.Address && bytes.Equal(t.Meta, other.Meta)
}
