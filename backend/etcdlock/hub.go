package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// Bounds of the hub's stream.
const (
	answerTime = 3 * time.Second // a server that has not answered for so long hangs
	quietTime  = 5 * time.Second // after so long without a word it is asked for one
	retryMin   = 20 * time.Millisecond
	retryMax   = time.Second
)

// listener is told what becomes of a watched key. Its methods are called from one
// goroutine and don't block.
type listener interface {
	armed(missed bool)      // the watch is live; missed: look whether something happened before
	event(ev *mvccpb.Event) // the key was written or deleted
}

// sub is one watch of a stream.
type sub struct {
	listener
	id       int64
	key, end string // end: empty for one key
	puts     bool   // also tell of writes
	start    int64  // revision; 0: from now on. Only the stream's goroutines change it
}

// hub has all watches of a backend on one stream. It runs from the first watch on.
type hub struct {
	conn   func() *grpc.ClientConn
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	running bool
	subs    map[int64]*sub
	last    int64 // id
	out     []*pb.WatchRequest
	more    chan struct{} // out has something
	pending int           // watches asked for and not live yet
	heard   time.Time     // when the server last said something, or was asked after it had
}

func newHub(conn func() *grpc.ClientConn) *hub {
	h := &hub{conn: conn, subs: map[int64]*sub{}, more: make(chan struct{}, 1)}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h
}

// watch begins to watch.
func (h *hub) watch(s *sub) *sub {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last++
	s.id = h.last
	if h.ctx.Err() != nil {
		return s
	}
	h.subs[s.id] = s
	h.create(s)
	if !h.running {
		h.running = true
		h.wg.Go(h.run)
	}
	return s
}

// create asks for a watch. The mutex is held.
func (h *hub) create(s *sub) {
	r := &pb.WatchCreateRequest{Key: []byte(s.key), StartRevision: s.start, WatchId: s.id}
	if s.end != "" {
		r.RangeEnd = []byte(s.end)
	}
	if !s.puts {
		r.Filters = []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT}
	}
	if h.pending == 0 {
		h.heard = time.Now()
	}
	h.pending++
	h.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}})
}

func (h *hub) send(r *pb.WatchRequest) {
	h.out = append(h.out, r)
	select {
	case h.more <- struct{}{}:
	default:
	}
}

// unwatch ends a watch. Its listener may still hear of what is under way.
func (h *hub) unwatch(s *sub) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.subs[s.id] != s {
		return
	}
	delete(h.subs, s.id)
	h.cancelWatch(s.id)
}

func (h *hub) cancelWatch(id int64) {
	h.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: id}}})
}

func (h *hub) close() {
	h.mu.Lock()
	h.cancel()
	h.mu.Unlock()
	h.wg.Wait()
}

// run has a stream open, again and again: each may be with another server.
func (h *hub) run() {
	for pause := retryMin; ; pause = min(2*pause, retryMax) {
		since := time.Now()
		h.stream()
		if time.Since(since) > answerTime {
			pause = retryMin
		}
		select {
		case <-time.After(pause):
		case <-h.ctx.Done():
			return
		}
	}
}

// stream runs until the stream fails. A server that has lost its leader ends it, and so
// does a watch that is refused: the login with which the stream was opened may have ended.
func (h *hub) stream() error {
	ctx, cancel := context.WithCancelCause(clientv3.WithRequireLeader(h.ctx))
	defer cancel(nil)
	stream, err := pb.NewWatchClient(h.conn()).Watch(ctx)
	if err != nil {
		return err
	}
	h.reopened()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	wg.Go(func() { cancel(h.receive(stream)) })
	wg.Go(func() { cancel(h.mind(ctx)) })
	for {
		for _, r := range h.take() {
			if err := stream.Send(r); err != nil {
				return err
			}
		}
		select {
		case <-h.more:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// reopened asks a new stream for all watches, from now on: each listener looks for itself
// what it has missed, and so no compacted revision is ever asked for.
func (h *hub) reopened() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.out, h.pending = nil, 0
	for _, s := range h.subs {
		s.start = 0
		h.create(s)
	}
}

func (h *hub) take() []*pb.WatchRequest {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := h.out
	h.out = nil
	return out
}

func (h *hub) receive(stream pb.Watch_WatchClient) error {
	for {
		resp, err := stream.Recv()
		if err != nil {
			return err
		}
		s := h.hear(resp)
		switch {
		case resp.Canceled && resp.Created:
			return fmt.Errorf("watch: %s", resp.CancelReason) // of whose it does not always tell
		case s == nil:
			continue
		case resp.Canceled:
			h.again(s)
		case resp.Created:
			s.armed(s.start == 0)
		}
		for _, ev := range resp.Events {
			s.event(ev)
		}
	}
}

// hear notes that the server answers, and returns the watch that it speaks of.
func (h *hub) hear(resp *pb.WatchResponse) *sub {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.heard = time.Now()
	if resp.Created {
		h.pending--
	}
	return h.subs[resp.WatchId]
}

// again asks for a watch that the server has ended since the revision to start from was
// compacted.
func (h *hub) again(s *sub) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.subs[s.id] != s {
		return
	}
	delete(h.subs, s.id)
	h.last++
	s.id, s.start = h.last, 0
	h.subs[s.id] = s
	h.create(s)
}

var errHangs = errors.New("the server does not answer")

// mind ends a stream whose server does not answer. One that has nothing to say is asked
// now and then for another watch of what it watches: that also tells whether the stream's
// login still holds.
func (h *hub) mind(ctx context.Context) error {
	tick := time.NewTicker(answerTime / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		h.mu.Lock()
		quiet := time.Since(h.heard)
		hangs := h.pending > 0 && quiet > answerTime
		if h.pending == 0 && quiet > quietTime {
			h.ask()
		}
		h.mu.Unlock()
		if hangs {
			return errHangs
		}
	}
}

// ask asks for an answer, to which nobody listens. The mutex is held.
func (h *hub) ask() {
	for _, s := range h.subs {
		h.last++
		h.create(&sub{id: h.last, key: s.key, end: s.end})
		h.cancelWatch(h.last)
		return
	}
}
