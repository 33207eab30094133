// Package faultproxy is a network between a client and a server that tests can break:
// what is asked arrives and the answer does not, connections end, or stay open and are
// silent, or a request arrives long after its sender went on by another connection.
//
//	p := faultproxy.New(t, srv.Addr())
//	b, err := redislock.Open(ctx, "redis://"+p.Addr())
//	p.LoseReply("order:555") // the server does it, and nobody learns of it
package faultproxy

import (
	"context"
	"net"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
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
	// Whose goroutines are counted shall not count these.
	go func() {
		pprof.SetGoroutineLabels(context.Background())
		p.accept()
	}()
	tb.Cleanup(func() { l.Close(); p.Cut() })
	return p
}

// Addr is where clients connect to.
func (p *Proxy) Addr() string { return p.l.Addr().String() }

// LoseReply lets the next request that contains text arrive, and ends its connection
// when the answer comes.
func (p *Proxy) LoseReply(text string) { p.loseReply.Store(text) }

// LoseRequest ends the connection that the next request with this text is sent on; it
// does not arrive.
func (p *Proxy) LoseRequest(text string) { p.loseRequest.Store(text) }

// Lost is how many requests and answers were lost so far, other than by silence.
func (p *Proxy) Lost() int64 { return p.lost.Load() }

// Silence lets nothing pass any more, in either direction, though connections can be
// made and stay open. Pass ends it.
func (p *Proxy) Silence() { p.silent.Store(true) }

// Sever is Silence for some clients only: those of whose connections, as accepted here,
// which says so. That is asked for all that they have, and for each that they make. Pass
// ends it.
func (p *Proxy) Sever(which func(client net.Conn) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sever = which
	for _, k := range p.links {
		k.silent.Store(k.silent.Load() || which(k.client))
	}
}

// Pass ends Silence and Sever. What was swallowed on a connection is missing there, which
// no network does: so those end.
func (p *Proxy) Pass() {
	p.silent.Store(false)
	p.mu.Lock()
	p.sever = nil
	p.mu.Unlock()
	p.Cut()
}

// Delay holds back all requests from now on, as retransmissions do: what was sent
// arrives, even if its sender has gone by then.
func (p *Proxy) Delay(d time.Duration) { p.delay.Store(int64(d)) }

// Unreplicate swallows whatever a Redis or Valkey server sends to its replicas from now
// on; other clients notice nothing.
func (p *Proxy) Unreplicate() { p.unreplied.Store(true) }

// Storm lets every request that contains text be lost with this probability (0 to 1):
// the request itself, its answer, or half of its answer; the connection ends each time.
// The same seed makes the same choices in the same order. A rate of 0 ends it.
func (p *Proxy) Storm(seed uint64, rate float64, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.random = newStorm(seed, rate, text)
	p.random.late = p.late.longest
}

// Cut ends all connections; what they hold back never arrives.
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

// fate decides what becomes of a request.
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
