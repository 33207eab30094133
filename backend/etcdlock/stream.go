package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/distlock/distlock/internal/wait"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

const (
	replyTimeout = 3 * time.Second // a server that hasn't replied for so long hangs
	idleTimeout  = 5 * time.Second // after which the client requests a reply
	retryMin     = 20 * time.Millisecond
	retryMax     = time.Second
)

// keyHandler handles the events of a watch. Its methods are called from one goroutine and don't
// block.
type keyHandler interface {
	started(missed bool)    // the watch is live; missed: it may have missed events
	event(ev *mvccpb.Event) // the key was written or deleted
}

// keyWatch is one watch of the stream.
type keyWatch struct {
	keyHandler
	id       int64
	key, end string // end: empty for one key
	puts     bool   // include writes
	start    int64  // revision; 0: now. Only the stream's goroutines change it
}

// watchStream has all watches of a backend on one stream, which opens with the first watch.
type watchStream struct {
	conn   func() *grpc.ClientConn
	ctx    context.Context
	cancel context.CancelFunc
	wg     wait.Group

	mu          sync.Mutex
	running     bool
	watches     map[int64]*keyWatch
	lastID      int64
	outbox      []*pb.WatchRequest
	outboxReady wait.Signal
	pending     int       // watches that are requested and not live yet
	lastReply   time.Time // or when the first of the pending watches was requested
}

func newWatchStream(conn func() *grpc.ClientConn) *watchStream {
	s := &watchStream{conn: conn, watches: map[int64]*keyWatch{}, outboxReady: wait.NewSignal()}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// watch starts a watch.
func (s *watchStream) watch(w *keyWatch) *keyWatch {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return w
	}
	s.add(w)
	if !s.running {
		s.running = true
		s.wg.Go(s.run)
	}
	return w
}

// add requests a watch under a new id. The mutex is held.
func (s *watchStream) add(w *keyWatch) {
	s.lastID++
	w.id = s.lastID
	s.watches[w.id] = w
	s.create(w)
}

func (s *watchStream) create(w *keyWatch) {
	r := &pb.WatchCreateRequest{Key: []byte(w.key), StartRevision: w.start, WatchId: w.id}
	if w.end != "" {
		r.RangeEnd = []byte(w.end)
	}
	if !w.puts {
		r.Filters = []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT}
	}
	if s.pending == 0 {
		s.lastReply = time.Now()
	}
	s.pending++
	s.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}})
}

func (s *watchStream) send(r *pb.WatchRequest) {
	s.outbox = append(s.outbox, r)
	s.outboxReady.Notify()
}

// unwatch ends a watch. Its handler may still receive events in flight.
func (s *watchStream) unwatch(w *keyWatch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watches[w.id] == w {
		delete(s.watches, w.id)
		s.cancelWatch(w.id)
	}
}

func (s *watchStream) cancelWatch(id int64) {
	s.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: id}}})
}

func (s *watchStream) close() {
	s.mu.Lock()
	s.cancel()
	s.mu.Unlock()
	s.wg.Wait()
}

// run opens one stream after another. Each may be to another server.
func (s *watchStream) run() {
	for try := 0; ; try++ {
		opened := time.Now()
		s.stream()
		if time.Since(opened) > replyTimeout {
			try = 0
		}
		if wait.Sleep(s.ctx, wait.Backoff(try, retryMin, retryMax)) != nil {
			return
		}
	}
}

// stream runs until the stream fails. It also fails when the server loses its leader, or refuses
// a watch: the stream's login may have ended.
func (s *watchStream) stream() error {
	ctx, cancel := context.WithCancelCause(clientv3.WithRequireLeader(s.ctx))
	defer cancel(nil)
	stream, err := pb.NewWatchClient(s.conn()).Watch(ctx)
	if err != nil {
		return err
	}
	s.resubscribe()
	var wg wait.Group
	defer wg.Wait()
	defer cancel(nil)
	wg.Go(func() { cancel(s.receive(stream)) })
	wg.Go(func() { cancel(s.monitor(ctx)) })
	for {
		for _, r := range s.takeOutbox() {
			if err := stream.Send(r); err != nil {
				return err
			}
		}
		select {
		case <-s.outboxReady:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// resubscribe requests all watches on a new stream, from now on. Each handler finds out itself
// whether it has missed events, so no compacted revision is ever needed.
func (s *watchStream) resubscribe() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outbox, s.pending = nil, 0
	for _, w := range s.watches {
		w.start = 0
		s.create(w)
	}
}

func (s *watchStream) takeOutbox() []*pb.WatchRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.outbox
	s.outbox = nil
	return out
}

func (s *watchStream) receive(stream pb.Watch_WatchClient) error {
	for {
		resp, err := stream.Recv()
		if err != nil {
			return err
		}
		w := s.recordReply(resp)
		switch {
		case resp.Canceled && resp.Created:
			return fmt.Errorf("watch: %s", resp.CancelReason) // often without the watch's id
		case w == nil:
			continue
		case resp.Canceled:
			s.rewatch(w)
		case resp.Created:
			w.started(w.start == 0)
		}
		for _, ev := range resp.Events {
			w.event(ev)
		}
	}
}

// recordReply returns the watch that a reply is for.
func (s *watchStream) recordReply(resp *pb.WatchResponse) *keyWatch {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastReply = time.Now()
	if resp.Created {
		s.pending--
	}
	return s.watches[resp.WatchId]
}

// rewatch restarts a watch whose start revision was compacted.
func (s *watchStream) rewatch(w *keyWatch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watches[w.id] == w {
		delete(s.watches, w.id)
		w.start = 0
		s.add(w)
	}
}

var errNoReply = errors.New("the server does not reply")

// monitor ends a stream whose server doesn't reply.
func (s *watchStream) monitor(ctx context.Context) error {
	for {
		if err := wait.Sleep(ctx, replyTimeout/3); err != nil {
			return err
		}
		s.mu.Lock()
		idle := time.Since(s.lastReply)
		hangs := s.pending > 0 && idle > replyTimeout
		if s.pending == 0 && idle > idleTimeout {
			s.probe()
		}
		s.mu.Unlock()
		if hangs {
			return errNoReply
		}
	}
}

// probe requests a second watch of a watched key, and cancels it at once. The reply also shows
// that the stream's login is still valid. The mutex is held.
func (s *watchStream) probe() {
	for _, w := range s.watches {
		s.lastID++
		s.create(&keyWatch{id: s.lastID, key: w.key, end: w.end})
		s.cancelWatch(s.lastID)
		return
	}
}
