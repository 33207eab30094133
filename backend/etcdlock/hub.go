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
	replyTimeout = 3 * time.Second // a server that has not answered for so long hangs
	idleTimeout  = 5 * time.Second // after so long without a word it is asked for one
	retryMin     = 20 * time.Millisecond
	retryMax     = time.Second
)

// keyHandler is told what becomes of a watched key. Its methods are called from one
// goroutine and don't block.
type keyHandler interface {
	started(missed bool)    // the watch is live; missed: look whether something happened before
	event(ev *mvccpb.Event) // the key was written or deleted
}

// keyWatch is one watch of a stream.
type keyWatch struct {
	keyHandler
	id       int64
	key, end string // end: empty for one key
	puts     bool   // also tell of writes
	start    int64  // revision; 0: from now on. Only the stream's goroutines change it
}

// watchStream has all watches of a backend on one stream. It runs from the first watch on.
type watchStream struct {
	conn   func() *grpc.ClientConn
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu          sync.Mutex
	running     bool
	watches     map[int64]*keyWatch
	lastID      int64 // id
	outbox      []*pb.WatchRequest
	outboxReady chan struct{} // out has something
	pending     int           // watches asked for and not live yet
	lastReply   time.Time     // when the server last said something, or was asked after it had
}

func newWatchStream(conn func() *grpc.ClientConn) *watchStream {
	h := &watchStream{conn: conn, watches: map[int64]*keyWatch{}, outboxReady: make(chan struct{}, 1)}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h
}

// watch begins to watch.
func (h *watchStream) watch(s *keyWatch) *keyWatch {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lastID++
	s.id = h.lastID
	if h.ctx.Err() != nil {
		return s
	}
	h.watches[s.id] = s
	h.create(s)
	if !h.running {
		h.running = true
		h.wg.Go(h.run)
	}
	return s
}

// create asks for a watch. The mutex is held.
func (h *watchStream) create(s *keyWatch) {
	r := &pb.WatchCreateRequest{Key: []byte(s.key), StartRevision: s.start, WatchId: s.id}
	if s.end != "" {
		r.RangeEnd = []byte(s.end)
	}
	if !s.puts {
		r.Filters = []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT}
	}
	if h.pending == 0 {
		h.lastReply = time.Now()
	}
	h.pending++
	h.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}})
}

func (h *watchStream) send(r *pb.WatchRequest) {
	h.outbox = append(h.outbox, r)
	select {
	case h.outboxReady <- struct{}{}:
	default:
	}
}

// unwatch ends a watch. Its listener may still hear of what is under way.
func (h *watchStream) unwatch(s *keyWatch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.watches[s.id] != s {
		return
	}
	delete(h.watches, s.id)
	h.cancelWatch(s.id)
}

func (h *watchStream) cancelWatch(id int64) {
	h.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: id}}})
}

func (h *watchStream) close() {
	h.mu.Lock()
	h.cancel()
	h.mu.Unlock()
	h.wg.Wait()
}

// run has a stream open, again and again: each may be with another server.
func (h *watchStream) run() {
	for pause := retryMin; ; pause = min(2*pause, retryMax) {
		since := time.Now()
		h.stream()
		if time.Since(since) > replyTimeout {
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
func (h *watchStream) stream() error {
	ctx, cancel := context.WithCancelCause(clientv3.WithRequireLeader(h.ctx))
	defer cancel(nil)
	stream, err := pb.NewWatchClient(h.conn()).Watch(ctx)
	if err != nil {
		return err
	}
	h.resubscribe()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	wg.Go(func() { cancel(h.receive(stream)) })
	wg.Go(func() { cancel(h.monitor(ctx)) })
	for {
		for _, r := range h.takeOutbox() {
			if err := stream.Send(r); err != nil {
				return err
			}
		}
		select {
		case <-h.outboxReady:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// resubscribe asks a new stream for all watches, from now on: each listener looks for itself
// what it has missed, and so no compacted revision is ever asked for.
func (h *watchStream) resubscribe() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.outbox, h.pending = nil, 0
	for _, s := range h.watches {
		s.start = 0
		h.create(s)
	}
}

func (h *watchStream) takeOutbox() []*pb.WatchRequest {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := h.outbox
	h.outbox = nil
	return out
}

func (h *watchStream) receive(stream pb.Watch_WatchClient) error {
	for {
		resp, err := stream.Recv()
		if err != nil {
			return err
		}
		s := h.recordReply(resp)
		switch {
		case resp.Canceled && resp.Created:
			return fmt.Errorf("watch: %s", resp.CancelReason) // of whose it does not always tell
		case s == nil:
			continue
		case resp.Canceled:
			h.rewatch(s)
		case resp.Created:
			s.started(s.start == 0)
		}
		for _, ev := range resp.Events {
			s.event(ev)
		}
	}
}

// recordReply notes that the server answers, and returns the watch that it speaks of.
func (h *watchStream) recordReply(resp *pb.WatchResponse) *keyWatch {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lastReply = time.Now()
	if resp.Created {
		h.pending--
	}
	return h.watches[resp.WatchId]
}

// rewatch asks for a watch that the server has ended since the revision to start from was
// compacted.
func (h *watchStream) rewatch(s *keyWatch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.watches[s.id] != s {
		return
	}
	delete(h.watches, s.id)
	h.lastID++
	s.id, s.start = h.lastID, 0
	h.watches[s.id] = s
	h.create(s)
}

var errNoReply = errors.New("the server does not answer")

// monitor ends a stream whose server does not answer. One that has nothing to say is asked
// now and then for another watch of what it watches: that also tells whether the stream's
// login still holds.
func (h *watchStream) monitor(ctx context.Context) error {
	tick := time.NewTicker(replyTimeout / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		h.mu.Lock()
		quiet := time.Since(h.lastReply)
		hangs := h.pending > 0 && quiet > replyTimeout
		if h.pending == 0 && quiet > idleTimeout {
			h.probe()
		}
		h.mu.Unlock()
		if hangs {
			return errNoReply
		}
	}
}

// probe asks for an answer, to which nobody listens. The mutex is held.
func (h *watchStream) probe() {
	for _, s := range h.watches {
		h.lastID++
		h.create(&keyWatch{id: h.lastID, key: s.key, end: s.end})
		h.cancelWatch(h.lastID)
		return
	}
}
