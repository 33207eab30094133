package redislock

import (
	"context"
	"io"
	"net"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// proxy stands between a client and the server. It can swallow answers, and cut.
type proxy struct {
	l      net.Listener
	target string

	swallow atomic.Value // string: answers to what contains it are swallowed
	eaten   atomic.Int64
	deaf    atomic.Bool // nothing passes any more, in either direction

	mu    sync.Mutex
	conns []net.Conn
}

func newProxy(tb testing.TB, target string) *proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &proxy{l: l, target: target}
	p.swallow.Store("")
	// Whose goroutines are counted shall not count these.
	go func() {
		pprof.SetGoroutineLabels(context.Background())
		p.accept()
	}()
	tb.Cleanup(func() { l.Close(); p.cut() })
	return p
}

func (p *proxy) addr() string { return p.l.Addr().String() }
func (p *proxy) url() string  { return "redis://" + p.addr() }

// pass ends deafness. What was swallowed on a connection is missing there, which no
// network does: so those end.
func (p *proxy) pass() {
	p.deaf.Store(false)
	p.cut()
}

// cut ends all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}

func (p *proxy) accept() {
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
		p.mu.Lock()
		p.conns = append(p.conns, client, server)
		p.mu.Unlock()
		go p.serve(client, server)
	}
}

// serve passes bytes on. The answer after a request to be swallowed ends the
// connection instead: the request was executed, and nobody learns it.
func (p *proxy) serve(client, server net.Conn) {
	var eat atomic.Bool
	go func() {
		defer client.Close()
		buf := make([]byte, 64<<10)
		for {
			n, err := server.Read(buf)
			if err != nil {
				return
			}
			if p.deaf.Load() {
				continue
			}
			if eat.Load() {
				p.eaten.Add(1)
				return
			}
			client.Write(buf[:n])
		}
	}()
	defer server.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		if p.deaf.Load() {
			continue
		}
		if word := p.swallow.Load().(string); word != "" && strings.Contains(string(buf[:n]), word) {
			p.swallow.Store("")
			eat.Store(true)
		}
		if _, err := server.Write(buf[:n]); err != nil && err != io.EOF {
			return
		}
	}
}
