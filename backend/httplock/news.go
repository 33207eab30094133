package httplock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/wait"
)

// news reports to holders what the servers push about their holds. News shorten trust, and never extend it.
type news struct {
	client *client
	life   context.Context        // of the streams
	begin  func(task func()) bool // in the background, unless the backend is closed
	secret string

	mu      sync.Mutex
	streams map[*endpoint]*newsStream
	holds   map[string]*holdListener // by Owner
	room    int                      // of holds, before the dead ones are removed
}

// holdListener has the callbacks of a hold.
type holdListener struct {
	onLost, onRevoke func()
	until            time.Time // it has ended by then, unless it is renewed
}

func newNews(c *client, life context.Context, begin func(task func()) bool) *news {
	var secret [httpwire.SecretBytes]byte
	rand.Read(secret[:])
	return &news{
		client: c, life: life, begin: begin, secret: hex.EncodeToString(secret[:]),
		streams: map[*endpoint]*newsStream{}, holds: map[string]*holdListener{},
	}
}

// subscribe completes the request for a hold that wants news, if the backend has any. The caller calls
// finish with the outcome.
func (n *news) subscribe(r driver.Request, q *request) (finish func(error)) {
	if n.client.caps.Revocable == 0 || r.OnLost == nil && r.OnRevoke == nil {
		return func(error) {}
	}
	q.secret = n.secret
	q.prepare = func(ctx context.Context, s *endpoint) error {
		stream := n.stream(s)
		if r.OnRevoke == nil {
			return nil
		}
		return stream.await(ctx)
	}
	before := n.listen(r.Owner, &holdListener{r.OnLost, r.OnRevoke, time.Now().Add(r.TTL)})
	return func(err error) {
		switch {
		case errors.Is(err, driver.ErrHeld):
			n.forget(r.Owner)
		case errors.Is(err, driver.ErrUnsent), driver.Final(err):
			n.listen(r.Owner, before)
		}
	}
}

// listen replaces the listener of a hold, and returns the former one. Both may be nil.
func (n *news) listen(owner string, l *holdListener) (before *holdListener) {
	n.mu.Lock()
	defer n.mu.Unlock()
	before = n.holds[owner]
	if l == nil {
		delete(n.holds, owner)
		return before
	}
	n.holds[owner] = l
	if len(n.holds) > n.room {
		for o, l := range n.holds {
			if l.until.Before(time.Now()) {
				delete(n.holds, o)
			}
		}
		n.room = 2*len(n.holds) + 100
	}
	return before
}

// forget ends the news of a hold.
func (n *news) forget(owner string) { n.listen(owner, nil) }

// renewed keeps the listener of a renewed hold, and drops the listener of a lost hold.
func (n *news) renewed(h driver.Hold, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch l := n.holds[h.Owner]; {
	case l == nil:
	case errors.Is(err, driver.ErrLost):
		delete(n.holds, h.Owner)
	case err == nil:
		l.until = time.Now().Add(h.TTL)
	}
}

// deliver calls the listener that an event is for, once.
func (n *news) deliver(e streamEvent) {
	var about httpwire.News
	if json.Unmarshal([]byte(e.data), &about) != nil {
		return
	}
	n.mu.Lock()
	var call func()
	if l := n.holds[about.Owner]; l != nil {
		switch e.name {
		case httpwire.EventLost:
			call = l.onLost
			delete(n.holds, about.Owner)
		case httpwire.EventAsked:
			call, l.onRevoke = l.onRevoke, nil
		}
	}
	n.mu.Unlock()
	if call != nil {
		call()
	}
}

// stream returns the stream of a server, which is opened if it is not open.
func (n *news) stream(s *endpoint) *newsStream {
	n.mu.Lock()
	defer n.mu.Unlock()
	st := n.streams[s]
	if st == nil {
		st = &newsStream{news: n, server: s, wanted: wait.NewSignal(), changed: make(chan struct{}), err: errOpening}
		n.streams[s] = st
		n.begin(st.run)
	}
	return st
}

// newsStream is the stream of one server.
type newsStream struct {
	news   *news
	server *endpoint
	wanted wait.Signal // ends the pause before it is opened again

	mu      sync.Mutex
	err     error         // nil while the stream is open
	changed chan struct{} // closed when err is set
}

var errOpening = errors.New("the stream is not open yet")

// await returns once the stream is open, or could not be opened.
func (st *newsStream) await(ctx context.Context) error {
	changed, err := st.state()
	if err == nil {
		return nil
	}
	st.wanted.Notify()
	select {
	case <-changed:
		_, err = st.state()
	case <-ctx.Done():
		err = ctx.Err()
	case <-st.news.life.Done():
		err = errClosing
	}
	if err != nil {
		return fmt.Errorf("without the stream of news the holder could not be asked for the lock: %w", err)
	}
	return nil
}

func (st *newsStream) state() (changed <-chan struct{}, err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.changed, st.err
}

func (st *newsStream) set(err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.err = err
	close(st.changed)
	st.changed = make(chan struct{})
}

// run keeps the stream open until the backend is closed.
func (st *newsStream) run() {
	for try := 0; st.pause(try); try++ {
		s, err := st.open()
		st.set(err)
		if err == nil {
			st.set(st.read(s))
			try = 0
		}
	}
}

// pause waits before a try, unless an Acquire needs the stream. It reports whether the backend is open.
func (st *newsStream) pause(try int) bool {
	life := st.news.life
	if try > 0 {
		t := time.NewTimer(wait.Jitter(wait.Backoff(try, reopenPause, maxReopenPause)))
		defer t.Stop()
		select {
		case <-t.C:
		case <-st.wanted:
		case <-life.Done():
		}
	}
	return life.Err() == nil
}

func (st *newsStream) open() (*stream, error) {
	c, life := st.news.client, st.news.life
	ctx, cancel := context.WithTimeout(life, maxReopenPause)
	defer cancel()
	q := get("/v1/news")
	q.secret, q.ends = st.news.secret, false
	return c.openStream(ctx, life, httpwire.EventHello, func(ctx context.Context) (*answer, error) {
		resp, err := c.try(ctx, st.server, q)
		return &answer{resp, st.server}, err
	})
}

func (st *newsStream) read(s *stream) error {
	defer s.close()
	for {
		e, err := s.next()
		if err != nil {
			return err
		}
		st.news.deliver(e)
	}
}
