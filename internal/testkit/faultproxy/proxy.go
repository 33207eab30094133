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
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
)

const (
	// heldAtOnce bounds the connections of a storm with requests held back, since each of them
	// keeps a connection of the server busy, and databases have few.
	heldAtOnce = 8

	// apart is the time between a late request and what was sent after it on the same
	// connection: a server that reads both at once may take the sender for gone.
	apart = 20 * time.Millisecond
)

// Proxy passes bytes between clients and one server. Its methods may be called at any
// time, by any goroutine.
type Proxy struct {
	tb testing.TB
	l  net.Listener

	mu          sync.Mutex
	target      string // "": each client says where it wants to go
	links       []*link
	refuses     bool
	sever       func(*link) bool // which connections are silent; nil: none
	unanswered  bool             // connections end when an answer comes
	unreplied   bool             // replicas hear nothing more from their master
	delay       time.Duration    // of requests
	loseReply   string           // the answer to the next request with this in it is lost; "": none
	loseRequest string           // the next request with this in it is lost
	holdBack    string           // the next request with this in it is held back
	holdFor     time.Duration
	random      storm
	longest     time.Duration // that a storm which begins now holds a request back
	now         chan struct{} // closed when the requests that are held back are to arrive

	lost, heldBack int64 // requests so far
	held           int   // connections with requests that have not arrived yet
}

// NewSOCKS starts a proxy of SOCKS 5, whose clients choose their servers. It ends with the test.
func NewSOCKS(tb testing.TB) *Proxy {
	tb.Helper()
	return New(tb, "")
}

// New starts a proxy on a port of its own; it ends with the test. The target need not
// listen yet.
func New(tb testing.TB, target string) *Proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &Proxy{tb: tb, l: l, target: target, now: make(chan struct{})}
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

// locked runs f alone.
func (p *Proxy) locked(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// LoseReply delivers the next request that contains text, and ends its connection when the answer
// comes.
func (p *Proxy) LoseReply(text string) { p.locked(func() { p.loseReply = text }) }

// LoseRequest ends the connection that the next request with this text is sent on; it
// does not arrive.
func (p *Proxy) LoseRequest(text string) { p.locked(func() { p.loseRequest = text }) }

// HoldBack holds back the next request with this text for d, and all later data of its connection. It
// arrives then, like a TCP retransmission, even if its sender has gone. The sender gets no answer.
func (p *Proxy) HoldBack(text string, d time.Duration) {
	p.locked(func() { p.holdBack, p.holdFor = text, d })
}

// Deliver delivers all requests that are held back.
func (p *Proxy) Deliver() {
	p.locked(func() {
		close(p.now)
		p.now = make(chan struct{})
	})
}

// Lost returns how many requests and answers were lost so far, other than by silence.
func (p *Proxy) Lost() (n int64) {
	p.locked(func() { n = p.lost })
	return n
}

// HeldBack returns how many requests were held back so far; Lost counts them, too.
func (p *Proxy) HeldBack() (n int64) {
	p.locked(func() { n = p.heldBack })
	return n
}

// Held counts the connections with requests that have not arrived yet.
func (p *Proxy) Held() (n int) {
	p.locked(func() { n = p.held })
	return n
}

// Silence drops all data in both directions. Connections can still be made and stay open. Pass
// ends it.
func (p *Proxy) Silence() { p.silence(func(*link) bool { return true }) }

// Sever silences only the connections, present and future, for which which returns true. Pass ends it.
func (p *Proxy) Sever(which func(client net.Conn) bool) {
	p.silence(func(k *link) bool { return which(k.client) })
}

// SeverTo is Sever for connections to some servers, those whose addresses which has.
func (p *Proxy) SeverTo(which func(server string) bool) {
	p.silence(func(k *link) bool { return which(k.server.RemoteAddr().String()) })
}

func (p *Proxy) silence(which func(*link) bool) {
	p.locked(func() {
		p.sever = which
		for _, k := range p.links {
			k.silent = k.silent || which(k)
		}
	})
}

// Pass ends Silence and Sever, and closes the connections that were silent: data is missing on them.
func (p *Proxy) Pass() {
	p.locked(func() {
		p.sever = nil
		for _, k := range p.links {
			if k.silent {
				k.close()
			}
		}
	})
}

// LoseReplies delivers all requests, and ends each connection when an answer comes, until restore is called.
func (p *Proxy) LoseReplies() (restore func()) {
	p.locked(func() { p.unanswered = true })
	return func() { p.locked(func() { p.unanswered = false }) }
}

// Delay delays all requests from now on, as retransmissions do: they arrive even if their sender has
// gone by then.
func (p *Proxy) Delay(d time.Duration) { p.locked(func() { p.delay = d }) }

// Unreplicate drops all that a Redis or Valkey server sends to its replicas from now on. Other clients
// are not affected.
func (p *Proxy) Unreplicate() { p.locked(func() { p.unreplied = true }) }

// Replicate ends Unreplicate, and closes the connections of replicas: data is missing on them.
func (p *Proxy) Replicate() {
	p.locked(func() {
		p.unreplied = false
		for _, k := range p.links {
			if k.replica {
				k.close()
			}
		}
	})
}

// Storm loses requests that contain text with probability rate: the request itself, its answer, or half
// of its answer. The connection ends each time. The same seed makes the same choices in the same order.
// A rate of 0 ends the storm.
func (p *Proxy) Storm(seed uint64, rate float64, text string) {
	p.locked(func() {
		p.random = storm{rnd: rand.New(rand.NewPCG(seed, 0)), rate: rate, text: text, longest: p.longest}
	})
}

// Late makes storms that begin from now on hold requests back, too, for a random time up to
// longest. Their senders see silence or the end of the connection. 0 ends that.
func (p *Proxy) Late(longest time.Duration) { p.locked(func() { p.longest = longest }) }

// Cut ends all connections. Requests that are held back never arrive.
func (p *Proxy) Cut() {
	p.locked(func() {
		for _, k := range p.links {
			k.close()
		}
		p.links = nil
	})
}

// Retarget sends later connections to another server, and ends all that there are.
func (p *Proxy) Retarget(target string) {
	p.locked(func() { p.target = target })
	p.Cut()
}

// Refuse closes all connections and refuses new ones from now on.
func (p *Proxy) Refuse() {
	p.l.Close()
	p.locked(func() { p.refuses = true })
	p.keepPort()
	p.Cut()
}

// keepPort makes a connection from the proxy's port, so that no other server is given it. The port
// may still have connections, or wait for the end of some.
func (p *Proxy) keepPort() {
	from := net.Dialer{LocalAddr: p.l.Addr(), Control: reuseAddr}
	for try := 1; ; try++ {
		other, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			p.tb.Fatal(err)
		}
		defer other.Close()
		conn, err := from.Dial("tcp", other.Addr().String())
		if err == nil {
			p.tb.Cleanup(func() { conn.Close() })
			return
		}
		if try == 10 { // the port of other may be that of a client that was connected
			p.tb.Fatalf("keep the port of a proxy: %v", err)
		}
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.l.Accept()
		var target string
		p.locked(func() { target = p.target })
		switch {
		case err != nil:
			return
		case target == "":
			go p.acceptSOCKS(client)
		default:
			server, err := net.Dial("tcp", target)
			if err != nil {
				client.Close()
				continue
			}
			p.connect(client, server, target)
		}
	}
}

// connect links a client to a server of target.
func (p *Proxy) connect(client, server net.Conn, target string) {
	k := &link{p: p, client: client, server: server, cut: make(chan struct{})}
	p.locked(func() {
		p.links = append(p.links, k)
		k.silent = p.sever != nil && p.sever(k)
		if p.refuses || target != p.target { // it was accepted before
			k.close()
		}
	})
	go k.answers()
	go k.requests()
}

// Values of SOCKS 5, RFC 1928.
const (
	socksHello    = "\x05\x00" // no password
	socksAccepted = "\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00"
	socksRefused  = "\x05\x05\x00\x01\x00\x00\x00\x00\x00\x00"
)

// acceptSOCKS connects a client to the server that it wants.
func (p *Proxy) acceptSOCKS(client net.Conn) {
	addr, err := socksTarget(client)
	if err != nil {
		client.Close()
		return
	}
	server, err := net.Dial("tcp", addr)
	if err != nil {
		io.WriteString(client, socksRefused)
		client.Close()
		return
	}
	io.WriteString(client, socksAccepted)
	p.connect(client, server, "")
}

// socksTarget returns the address that a client wants to reach.
func socksTarget(client net.Conn) (string, error) {
	var hello [2]byte
	if _, err := io.ReadFull(client, hello[:]); err != nil {
		return "", err
	}
	if _, err := io.CopyN(io.Discard, client, int64(hello[1])); err != nil {
		return "", err
	}
	if _, err := io.WriteString(client, socksHello); err != nil {
		return "", err
	}
	var request [10]byte // version, connect, reserved, kind of address, address, port
	if _, err := io.ReadFull(client, request[:]); err != nil {
		return "", err
	}
	if request[0] != 5 || request[1] != 1 || request[3] != 1 {
		return "", errors.New("not SOCKS 5 to an IPv4 address")
	}
	port := strconv.Itoa(int(binary.BigEndian.Uint16(request[8:])))
	return net.JoinHostPort(net.IP(request[4:8]).String(), port), nil
}

// fate is the outcome of a request or of its answer.
type fate int

const (
	passed fate = iota
	requestLost
	replyLost
	replyTorn
	held
	swallowed // by silence
)

// verdict is the fate of one request.
type verdict struct {
	fate
	late time.Duration // for how long it arrives later
	ends bool          // its sender sees the end of the connection meanwhile
	now  chan struct{} // closed when it is to arrive sooner
}

// storm chooses fates at random. The zero storm lets all requests pass.
type storm struct {
	rnd     *rand.Rand
	rate    float64
	text    string
	longest time.Duration // that a request is held back; 0: none is
}

func (s *storm) next(request string) verdict {
	if s.rnd == nil || !strings.Contains(request, s.text) || s.rnd.Float64() >= s.rate {
		return verdict{}
	}
	fates := 3
	if s.longest > 0 {
		fates = 4
	}
	v := verdict{fate: requestLost + fate(s.rnd.IntN(fates))}
	if v.fate == held {
		// Mostly for a small part of the longest time, as short delays are the usual ones.
		longest := max(s.longest>>s.rnd.IntN(7), 1)
		v.late, v.ends = time.Duration(1+s.rnd.Int64N(int64(longest))), s.rnd.IntN(2) == 0
	}
	return v
}

// decide decides the outcome of a request. Proxy.mu is held.
func (p *Proxy) decide(k *link, request string) (v verdict) {
	switch {
	case k.silent:
		return verdict{fate: swallowed}
	case takeWord(&p.loseRequest, request):
		v.fate = requestLost
	case takeWord(&p.loseReply, request):
		v.fate = replyLost
	default:
		v = p.random.next(request)
		if takeWord(&p.holdBack, request) {
			v = verdict{fate: held, late: p.holdFor}
		} else if v.fate == held && p.held >= heldAtOnce {
			v = verdict{}
		}
	}
	k.answer = v.fate
	switch v.fate {
	case requestLost:
		p.lost++
	case held:
		p.lost++
		p.held++
		p.heldBack++
		v.now = p.now
	default:
		v.late = p.delay
		k.replica = k.replica || strings.Contains(request, "PSYNC")
	}
	return v
}

// takeWord reports whether text contains word, and clears it.
func takeWord(word *string, text string) bool {
	if *word == "" || !strings.Contains(text, *word) {
		return false
	}
	*word = ""
	return true
}

// link is a client's connection and the one to the server that goes with it. Proxy.mu guards the
// fields below cut.
type link struct {
	p              *Proxy
	client, server net.Conn
	once           sync.Once
	cut            chan struct{} // closed by close

	answer  fate // of the next answer
	replica bool // the client is a replica that has asked for its master's writes
	silent  bool // nothing passes
}

// close ends both connections, and gives up what is held back.
func (l *link) close() {
	l.once.Do(func() {
		close(l.cut)
		l.client.Close()
		l.server.Close()
	})
}

// requests forwards the client's data. At the end it closes only one direction to the server: the server
// executes all that it received before it sees the end, and the client sees the end after that. So no
// request arrives after one on a new connection.
func (l *link) requests() {
	defer l.server.(*net.TCPConn).CloseWrite()
	buf := make([]byte, 64<<10)
	for {
		n, err := l.client.Read(buf)
		if err != nil {
			return
		}
		var v verdict
		l.p.locked(func() { v = l.p.decide(l, string(buf[:n])) })
		switch v.fate {
		case swallowed:
			continue
		case requestLost:
			return
		case held:
			l.deliverLate(buf[:n], v)
			return
		}
		time.Sleep(v.late)
		if _, err := l.server.Write(buf[:n]); err != nil {
			return
		}
		if v.fate != passed {
			l.p.locked(func() { l.p.lost++ })
			return
		}
	}
}

// answers forwards the server's data.
func (l *link) answers() {
	defer l.client.Close()
	defer l.server.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := l.server.Read(buf)
		if err != nil {
			return
		}
		lost := false
		l.p.locked(func() {
			switch {
			case l.p.unanswered:
				lost = true
			case l.silent || l.replica && l.p.unreplied || l.answer == replyLost || l.answer == held:
				n = 0
			case l.answer == replyTorn:
				l.answer = replyLost
				n /= 2
			}
		})
		if lost {
			return
		}
		if n == 0 {
			continue
		}
		if _, err := l.client.Write(buf[:n]); err != nil {
			return
		}
	}
}

// deliverLate delivers a request late, and then what its connection has sent since.
func (l *link) deliverLate(request []byte, v verdict) {
	defer l.p.locked(func() { l.p.held-- })
	if v.ends {
		l.client.(*net.TCPConn).CloseWrite()
	}
	wait := time.NewTimer(v.late)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-v.now:
	case <-l.cut:
		return
	}
	if _, err := l.server.Write(request); err != nil {
		return
	}
	time.Sleep(apart)
	for buf := make([]byte, 64<<10); ; {
		l.client.SetReadDeadline(time.Now().Add(apart))
		n, err := l.client.Read(buf)
		if n > 0 {
			if _, err := l.server.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// AwaitUnsent makes attempts through a proxy that refuses connections until one fails with driver.ErrUnsent. The first may
// meet connections that were just lost.
func AwaitUnsent(tb testing.TB, b driver.Backend, request func() driver.Request) {
	tb.Helper()
	awaitUnsent(tb, "acquire", func(ctx context.Context) error {
		_, err := b.Acquire(ctx, request())
		return err
	})
}

// AwaitUnsentRelease is AwaitUnsent for releases.
func AwaitUnsentRelease(tb testing.TB, b driver.Backend, h driver.Hold) {
	tb.Helper()
	awaitUnsent(tb, "release", func(ctx context.Context) error { return b.Release(ctx, h) })
}

func awaitUnsent(tb testing.TB, call string, try func(context.Context) error) {
	tb.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		err := try(ctx)
		cancel()
		switch {
		case err == nil, errors.Is(err, driver.ErrHeld), errors.Is(err, driver.ErrLost), driver.Final(err):
			tb.Fatalf("%s without a server: %v", call, err)
		case errors.Is(err, driver.ErrUnsent):
			return
		case time.Now().After(end):
			tb.Fatalf("the last %s without a server: %v", call, err)
		}
	}
}
