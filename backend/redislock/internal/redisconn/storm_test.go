package redisconn

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/driver"
)

// stormServer echoes the last word of each command. At random it is silent, ends connections, cuts answers and tears writes.
type stormServer struct {
	mu       sync.Mutex
	rand     *rand.Rand
	executed map[string]bool
	open     int // connections
	most     int
}

// chance reports what happens once in so many times.
func (f *stormServer) chance(in int) bool { return f.below(in) == 0 }

func (f *stormServer) below(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rand.IntN(n)
}

func (f *stormServer) silence(atMost int) {
	time.Sleep(time.Duration(f.below(atMost)) * time.Millisecond)
}

func (f *stormServer) dial(context.Context, string, string) (net.Conn, error) {
	if f.chance(10) {
		return nil, errors.New("nobody is there")
	}
	f.silence(200)
	ours, theirs := net.Pipe()
	answers := make(chan string, 10_000)
	go f.execute(theirs, answers)
	go f.answer(theirs, answers)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open++
	f.most = max(f.most, f.open)
	c := &stormConn{Conn: ours, left: 1 << 30, ended: sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.open--
	})}
	if f.rand.IntN(3) == 0 {
		c.left = f.rand.IntN(5000)
	}
	return c, nil
}

func (f *stormServer) execute(conn net.Conn, answers chan<- string) {
	defer close(answers)
	for r := newReader(conn); ; {
		command, err := r.next()
		if err != nil {
			return
		}
		words := Texts(command)
		word := words[len(words)-1]
		f.mu.Lock()
		f.executed[word] = true
		f.mu.Unlock()
		answers <- word
		if f.chance(60) {
			f.silence(3000)
		}
	}
}

func (f *stormServer) answer(conn net.Conn, answers <-chan string) {
	defer conn.Close()
	for word := range answers {
		b := fmt.Appendf(nil, "$%d\r\n%s\r\n", len(word), word)
		cut := 1 + f.below(len(b)-1)
		if _, err := conn.Write(b[:cut]); err != nil {
			return
		}
		switch {
		case f.chance(150):
			return
		case f.chance(50):
			f.silence(3000)
		}
		if _, err := conn.Write(b[cut:]); err != nil {
			return
		}
	}
}

// stormConn ends in the middle of a write.
type stormConn struct {
	net.Conn
	left  int // bytes
	ended func()
}

func (c *stormConn) Write(b []byte) (int, error) {
	if c.left -= len(b); c.left >= 0 {
		return c.Conn.Write(b)
	}
	n, _ := c.Conn.Write(b[:max(0, c.left+len(b))])
	return n, errTorn
}

func (c *stormConn) Close() error {
	c.ended()
	return c.Conn.Close()
}

// Whatever happens, an answer is that to the caller's own command, what is said to be unsent is never executed, what was given
// up ends, there are at most maxFormer connections beside those in use and in the making, and nothing is left behind.
func TestStorm(t *testing.T) {
	for seed := range uint64(12) {
		synctest.Test(t, func(t *testing.T) {
			f := &stormServer{rand: rand.New(rand.NewPCG(seed, 0)), executed: map[string]bool{}}
			s := NewServer(Options{Addr: "storm:1", Timeout: 2 * time.Second, Dialer: f.dial})
			var callers sync.WaitGroup
			unsent := make([][]string, 20)
			for i := range unsent {
				callers.Go(func() {
					r := rand.New(rand.NewPCG(seed, uint64(i+1)))
					for k := range 50 {
						unsent[i] = append(unsent[i], stormCall(t, s, r, fmt.Sprintf("%d.%d", i, k))...)
					}
				})
			}
			if seed%2 == 1 {
				time.Sleep(time.Duration(f.below(5000)) * time.Millisecond)
				s.Close()
			}
			callers.Wait()
			s.Close()
			time.Sleep(time.Hour)
			f.mu.Lock()
			defer f.mu.Unlock()
			if len(s.wires) > 0 || f.open > 0 || f.most > maxDials+maxFormer {
				t.Errorf("seed %d: %d connections are left, %d are open, and there were %d", seed, len(s.wires), f.open, f.most)
			}
			for _, word := range slices.Concat(unsent...) {
				if f.executed[word] {
					t.Errorf("seed %d: %.10s was unsent, and executed", seed, word)
				}
			}
		})
	}
}

// stormCall makes a call, and returns those of its words that are unsent.
func stormCall(t *testing.T, s *Server, r *rand.Rand, word string) (unsent []string) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	switch r.IntN(4) {
	case 0:
		ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(300))*time.Millisecond)
		defer cancel()
	case 1:
		time.AfterFunc(time.Duration(r.IntN(300))*time.Millisecond, cancel)
	}
	if r.IntN(50) == 0 {
		word += strings.Repeat("x", r.IntN(100<<10))
	}
	words, commands := []string{word, word + ".1", word + ".2"}[:1+2*r.IntN(2)], [][]string(nil)
	for _, w := range words {
		commands = append(commands, []string{"ECHO", w})
	}
	for i, a := range s.DoAll(ctx, commands) {
		u := (*UnansweredError)(nil)
		switch {
		case a.Err == nil && a.Reply != words[i]:
			t.Errorf("%.10s got the answer %.10s", words[i], a.Reply)
		case errors.Is(MarkUnsent(a.Err), driver.ErrUnsent):
			unsent = append(unsent, words[i])
		case errors.As(a.Err, &u):
			select {
			case <-u.Done:
			case <-time.After(time.Minute):
				t.Errorf("%.10s does not end", words[i])
			}
		}
	}
	if r.IntN(100) == 0 {
		s.Reconnect()
	}
	time.Sleep(time.Duration(r.IntN(3)*r.IntN(300)) * time.Millisecond)
	return unsent
}
