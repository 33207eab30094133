// Package faultproxy is a network between a client and a server that tests can break: a request
// arrives and its answer does not, connections end, or stay open and are silent, or a request arrives
// long after its sender continued on another connection.
//
//	p := faultproxy.New(t, srv.Addr())
//	b, err := redislock.Open(ctx, "redis://"+p.Addr())
//	p.LoseReply("order:555") // the server executes it, and the client gets no answer
package faultproxy

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
)

// Proxy passes bytes between clients and one server. Its methods may be called at any
// time, by any goroutine.
type Proxy struct {
	tb     testing.TB
	l      net.Listener
	target string

	loseReply   atomic.Value // string: the answer to the next request with this in it is lost
	loseRequest atomic.Value // string: the next request with this in it is lost
	lost        atomic.Int64
	silent      atomic.Bool
	unreplied   atomic.Bool  // replicas hear nothing more from their master
	delay       atomic.Int64 // of requests

	mu     sync.Mutex
	links  []*link
	random *storm
	late   late
	sever  func(client net.Conn) bool // which connections are silent
}

// New starts a proxy on a port of its own; it ends with the test. The target need not
// listen yet.
func New(tb testing.TB, target string) *Proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &Proxy{tb: tb, l: l, target: target, late: late{now: make(chan struct{})}}
	p.loseReply.Store("")
	p.loseRequest.Store("")
	// Tests that count goroutines by label must not count these.
	go func() {
		pprof.SetGoroutineLabels(context.Background())
		p.accept()
	}()
	tb.Cleanup(func() { l.Close(); p.Cut() })
	return p
}

// Addr returns the place where clients connect to.
func (p *Proxy) Addr() string { return p.l.Addr().String() }

// LoseReply delivers the next request that contains text, and ends its connection when the answer
// comes.
func (p *Proxy) LoseReply(text string) { p.loseReply.Store(text) }

// LoseRequest ends the connection that the next request with this text is sent on; it
// does not arrive.
func (p *Proxy) LoseRequest(text string) { p.loseRequest.Store(text) }

// Lost returns how many requests and answers were lost so far, other than by silence.
func (p *Proxy) Lost() int64 { return p.lost.Load() }

// Silence drops all data in both directions. Connections can still be made and stay open. Pass
// ends it.
func (p *Proxy) Silence() { p.silent.Store(true) }

// Sever silences only the connections, present and future, for which which returns true. Pass ends it.
func (p *Proxy) Sever(which func(client net.Conn) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sever = which
	for _, k := range p.links {
		k.silent.Store(k.silent.Load() || which(k.client))
	}
}

// Pass ends Silence and Sever, and closes all connections: data is missing on them.
func (p *Proxy) Pass() {
	p.silent.Store(false)
	p.mu.Lock()
	p.sever = nil
	p.mu.Unlock()
	p.Cut()
}

// Delay delays all requests from now on, as retransmissions do: they arrive even if their sender has
// gone by then.
func (p *Proxy) Delay(d time.Duration) { p.delay.Store(int64(d)) }

// Unreplicate drops all that a Redis or Valkey server sends to its replicas from now on. Other clients
// are not affected.
func (p *Proxy) Unreplicate() { p.unreplied.Store(true) }

// Storm loses requests that contain text with probability rate: the request itself, its answer, or half
// of its answer. The connection ends each time. The same seed makes the same choices in the same order.
// A rate of 0 ends the storm.
func (p *Proxy) Storm(seed uint64, rate float64, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.random = newStorm(seed, rate, text)
	p.random.late = p.late.longest
}

// Cut ends all connections. Requests that are held back never arrive.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.links {
		k.close()
	}
	p.links = nil
}

func (p *Proxy) accept() {
	for {
		client, err := p.l.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			client.Close()
			continue
		}
		k := &link{p: p, client: client, server: server, cut: make(chan struct{})}
		p.add(k)
		go k.answers()
		go k.requests()
	}
}

func (p *Proxy) add(k *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.links = append(p.links, k)
	k.silent.Store(p.sever != nil && p.sever(k.client))
}

// fate decides the outcome of a request.
func (p *Proxy) fate(request string) verdict {
	switch {
	case takeWord(&p.loseRequest, request):
		return verdict{fate: requestLost}
	case takeWord(&p.loseReply, request):
		return verdict{fate: replyLost}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	v := p.random.next(request)
	if p.late.next != "" && strings.Contains(request, p.late.next) {
		v, p.late.next = verdict{fate: held, late: p.late.wait}, ""
	} else if v.fate == held && p.late.held >= heldAtOnce {
		return verdict{}
	}
	if v.fate == held {
		p.late.held++
		p.late.total++
		v.now = p.late.now
	}
	return v
}

// fate is the outcome of a request or of its answer.
type fate uint32

const (
	passed fate = iota
	requestLost
	replyLost
	replyTorn
	held
)

// storm chooses fates at random. A nil storm lets all requests pass.
type storm struct {
	rnd  *rand.Rand
	rate float64
	text string
	late time.Duration // the longest that a request is held back; 0: none is
}

func newStorm(seed uint64, rate float64, text string) *storm {
	return &storm{rnd: rand.New(rand.NewPCG(seed, 0)), rate: rate, text: text}
}

// verdict is the fate of one request.
type verdict struct {
	fate
	late time.Duration // for how long it is held back
	ends bool          // its sender sees the end of the connection meanwhile
	now  chan struct{} // closed when it is to arrive sooner
}

func (s *storm) next(request string) verdict {
	if s == nil || !strings.Contains(request, s.text) || s.rnd.Float64() >= s.rate {
		return verdict{}
	}
	fates := 3
	if s.late > 0 {
		fates = 4
	}
	v := verdict{fate: requestLost + fate(s.rnd.IntN(fates))}
	if v.fate == held {
		// Mostly for a small part of the longest time, as short delays are the usual ones.
		longest := max(s.late>>s.rnd.IntN(7), 1)
		v.late, v.ends = time.Duration(1+s.rnd.Int64N(int64(longest))), s.rnd.IntN(2) == 0
	}
	return v
}

// takeWord reports whether text contains word, and clears it.
func takeWord(word *atomic.Value, text string) bool {
	w, _ := word.Load().(string)
	return w != "" && strings.Contains(text, w) && word.CompareAndSwap(w, "")
}

// link is a client's connection and the one to the server that goes with it.
type link struct {
	p              *Proxy
	client, server net.Conn
	answer         atomic.Uint32 // fate of the next answer
	replica        atomic.Bool   // the client is a replica that has asked for its master's writes
	silent         atomic.Bool   // nothing passes
	cut            chan struct{} // closed by close
	once           sync.Once
}

// close ends both connections, and gives up what is held back.
func (k *link) close() {
	k.once.Do(func() {
		close(k.cut)
		k.client.Close()
		k.server.Close()
	})
}

func (k *link) muted() bool { return k.silent.Load() || k.p.silent.Load() }

// requests forwards the client's data. At the end it closes only one direction to the server: the server
// executes all that it received before it sees the end, and the client sees the end after that. So no
// request arrives after one on a new connection.
func (k *link) requests() {
	defer k.server.(*net.TCPConn).CloseWrite()
	buf := make([]byte, 64<<10)
	for {
		n, err := k.client.Read(buf)
		if err != nil {
			return
		}
		if k.muted() {
			continue
		}
		request := string(buf[:n])
		f := k.p.fate(request)
		switch f.fate {
		case requestLost:
			k.p.lost.Add(1)
			return
		case held:
			k.p.lost.Add(1)
			k.holdBack(buf[:n], f)
			return
		}
		if strings.Contains(request, "PSYNC") {
			k.replica.Store(true)
		}
		k.answer.Store(uint32(f.fate))
		time.Sleep(time.Duration(k.p.delay.Load()))
		if _, err := k.server.Write(buf[:n]); err != nil {
			return
		}
		if f.fate != passed {
			k.p.lost.Add(1)
			return
		}
	}
}

// answers forwards the server's data.
func (k *link) answers() {
	defer k.client.Close()
	defer k.server.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := k.server.Read(buf)
		if err != nil {
			return
		}
		if k.muted() || k.replica.Load() && k.p.unreplied.Load() {
			continue
		}
		switch fate(k.answer.Load()) {
		case replyLost:
			continue
		case replyTorn:
			k.answer.Store(uint32(replyLost))
			n /= 2
		}
		if _, err := k.client.Write(buf[:n]); err != nil {
			return
		}
	}
}

// Refuse closes all connections and refuses new ones from now on.
func (p *Proxy) Refuse() {
	p.l.Close()
	p.keepPort()
	p.Cut()
}

// keepPort makes a connection from the proxy's port, so that no other server listens there. It
// fails while the port still has connections, which have the same effect.
func (p *Proxy) keepPort() {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return
	}
	defer other.Close()
	from := net.Dialer{LocalAddr: p.l.Addr()}
	if conn, err := from.Dial("tcp", other.Addr().String()); err == nil {
		p.tb.Cleanup(func() { conn.Close() })
	}
}

// AwaitUnsent makes attempts through a proxy that refuses connections until one fails with
// driver.ErrUnsent. The first attempts may meet connections that were just lost.
func AwaitUnsent(tb testing.TB, b driver.Backend, request func() driver.Request) {
	tb.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		_, err := b.Acquire(ctx, request())
		cancel()
		switch {
		case err == nil, errors.Is(err, driver.ErrHeld), errors.Is(err, driver.ErrLost), driver.Final(err):
			tb.Fatalf("acquire without a server: %v", err)
		case errors.Is(err, driver.ErrUnsent):
			return
		case time.Now().After(end):
			tb.Fatalf("the last attempt without a server: %v", err)
		}
	}
}

const (
	// heldAtOnce bounds the connections of a storm with requests held back, since each of them
	// keeps a connection of the server busy, and databases have few.
	heldAtOnce = 8

	// apart is the time between a late request and what was sent after it on the same
	// connection: a server that reads both at once may take the sender for gone.
	apart = 20 * time.Millisecond
)

// late is the state of requests that a proxy holds back. Proxy.mu guards it.
type late struct {
	next    string        // the next request with this in it is held back; "": none
	wait    time.Duration // for so long
	longest time.Duration // that a storm holds a request back
	total   int64         // requests that were held back so far
	held    int           // connections with requests that have not arrived yet
	now     chan struct{} // closed when they are to arrive
}

// HoldBack holds back the next request with this text for d, and all later data of its connection. It
// arrives then, like a TCP retransmission, even if its sender has gone. The sender gets no answer.
func (p *Proxy) HoldBack(text string, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.late.next, p.late.wait = text, d
}

// Late makes storms that begin from now on hold requests back, too, for a random time up to
// longest. Their senders see silence or the end of the connection. 0 ends that.
func (p *Proxy) Late(longest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.late.longest = longest
}

// Held counts the connections with requests that have not arrived yet.
func (p *Proxy) Held() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.late.held
}

// HeldBack returns how many requests were held back so far; Lost counts them, too.
func (p *Proxy) HeldBack() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.late.total
}

// Deliver delivers all requests that are held back.
func (p *Proxy) Deliver() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.late.now)
	p.late.now = make(chan struct{})
}

// holdBack delivers a request late, and then what its connection has sent since.
func (k *link) holdBack(request []byte, v verdict) {
	defer func() {
		k.p.mu.Lock()
		defer k.p.mu.Unlock()
		k.p.late.held--
	}()
	k.answer.Store(uint32(replyLost))
	if v.ends {
		k.client.(*net.TCPConn).CloseWrite()
	}
	wait := time.NewTimer(v.late)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-v.now:
	case <-k.cut:
		return
	}
	if _, err := k.server.Write(request); err == nil {
		time.Sleep(apart)
		k.deliver()
	}
}

// deliver forwards what the client has sent so far.
func (k *link) deliver() {
	buf := make([]byte, 64<<10)
	for {
		k.client.SetReadDeadline(time.Now().Add(apart))
		n, err := k.client.Read(buf)
		if n > 0 {
			if _, err := k.server.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
