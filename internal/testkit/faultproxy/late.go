package faultproxy

import (
	"net"
	"time"
)

const (
	// heldAtOnce bounds the connections of a storm with requests held back, since each of them
	// keeps a connection of the server busy, and databases have few.
	heldAtOnce = 8

	// apart is the time between a late request and what was sent after it on the same
	// connection: a server that reads both at once may take the sender for gone.
	apart = 20 * time.Millisecond
)

// late is what a proxy holds back. Proxy.mu guards it.
type late struct {
	next    string        // the next request with this in it is held back; "": none
	wait    time.Duration // for so long
	longest time.Duration // that a storm holds a request back
	total   int64         // requests that were held back so far
	held    int           // connections with requests that have not arrived yet
	now     chan struct{} // closed when they are to arrive
}

// HoldBack holds the next request with this text back for d, and with it whatever else its
// connection sends. It arrives then, as a TCP retransmission does, also if its sender has
// gone. The sender gets no answer.
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

// HeldBack is how many requests were held back so far; Lost counts them, too.
func (p *Proxy) HeldBack() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.late.total
}

// Deliver lets all that is held back arrive now.
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

// deliver passes on what the client has sent so far.
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
