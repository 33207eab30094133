package faultproxy

import (
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// fate is what becomes of a request or of its answer.
type fate uint32

const (
	passed fate = iota
	requestLost
	replyLost
	replyTorn
	held
)

// storm chooses fates at random. A nil one lets everything pass.
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

// takeWord reports whether text has the word that is waited for, which is once.
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

// requests passes on what the client sends. It ends the server's side only half: the
// server does all that it was sent before it learns that this was all, and the client
// hears of the end after that. So nothing lands after what is sent on a new connection.
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

// answers passes on what the server sends.
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
