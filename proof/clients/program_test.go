//go:build linux

package clients

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// A program makes calls with the client of its language. Each line that it reads is a call: a number, what to do, and the
// arguments as in a URL's query. It makes all calls side by side. Each line that it writes is an answer: the number of the call,
// a word, and more. Times are in ms.
//
//	1 open urls=http%3A%2F%2F127.0.0.1%3A7077    1 opened           a client, with token or token_file
//	2 lock client=1&name=a&ttl=3000&wait=0       2 held 17          a lease and its fence; mode, limit, min_hold, max_hold, renew
//	3 check lease=2                              3 held
//	4 extend lease=2&ttl=60000                   4 held
//	5 release lease=2                            5 released
//	6 cancel call=2                              2 cancelled        the lock that is waited for
//	7 forget lease=2, 8 collect                  7 forgotten        drops a lease, and collects garbage
//	9 twice client=1&name=a                      9 locked told      two blocks under one lease
//	10 shared client=1&name=a&limit=1            10 1 2 0 0         two tasks with one lock object
//	11 turns client=1&name=a&n=9&total=90        11 turns 10 9 …    many waiters, and the turns of each
//	12 wrong client=1&case=…, 13 idiom …         12 error Invalid … a wrong argument; an idiom of the language
//	14 count client=1&name=a&file=f&rounds=9     14 counted         adds to the number in a file
//	15 exit                                                         ends as programs of the language do
//
// An error is "error", its class, and its text. With watch=1 a lock says "lost" and the monotonic time until which it was trusted.
type program struct {
	cmd   *exec.Cmd
	in    io.Writer
	ended chan struct{}
	err   error // of its end

	mu    sync.Mutex
	calls map[int]chan string // the answers, by call
	last  int
	said  bytes.Buffer // on the standard error
}

// run starts a program. It ends with the test process at the latest.
func (l *language) run(tb testing.TB) *program {
	tb.Helper()
	p := &program{cmd: l.program(tb), ended: make(chan struct{}), calls: map[int]chan string{}}
	p.in = must.Get(p.cmd.StdinPipe())(tb)
	out := must.Get(p.cmd.StdoutPipe())(tb)
	p.cmd.Stderr = p
	must.OK(tb, testserver.Spawn(p.cmd))
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			number, answer, _ := strings.Cut(s.Text(), " ")
			n, _ := strconv.Atoi(number)
			p.mu.Lock()
			if answers := p.calls[n]; answers != nil {
				answers <- answer
			} else {
				fmt.Fprintln(&p.said, s.Text())
			}
			p.mu.Unlock()
		}
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p
}

// Write notes what the program writes on its standard error.
func (p *program) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.Write(text)
}

// stderr returns what the program has written on its standard error.
func (p *program) stderr() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.String()
}

func (p *program) kill() {
	p.cmd.Process.Kill()
	<-p.ended
}

// peer is a client in a program.
type peer struct {
	testing.TB
	program  *program
	client   *call
	patience time.Duration // for what isn't meant to take long
}

const patience = locktest.Patience

// start starts a program with a client. It ends with the test.
func (l *language) start(tb testing.TB, urls ...string) *peer {
	tb.Helper()
	return l.startAs(tb, "", urls...)
}

// startAs is start for a client that has a token.
func (l *language) startAs(tb testing.TB, token string, urls ...string) *peer {
	tb.Helper()
	p := &peer{TB: tb, program: l.run(tb), patience: patience}
	tb.Cleanup(func() {
		p.program.kill()
		if tb.Failed() {
			tb.Logf("%s said: %s", l.name, p.program.stderr())
		}
	})
	args := []any{"urls", strings.Join(urls, ",")}
	if token != "" {
		args = append(args, "token", token)
	}
	p.open(args...)
	return p
}

// open makes the client of the peer.
func (p *peer) open(args ...any) {
	p.Helper()
	p.client = p.call("open", args...)
	p.client.hears("opened")
}

// call is a call of a program, and the lease that it has taken.
type call struct {
	*peer
	number  int
	text    string
	answers chan string
}

// call makes a call. Arguments are names and values in turn.
func (p *peer) call(what string, args ...any) *call {
	p.Helper()
	q := url.Values{}
	for i := 0; i < len(args); i += 2 {
		q.Set(args[i].(string), fmt.Sprint(args[i+1]))
	}
	if p.client != nil {
		q.Set("client", strconv.Itoa(p.client.number))
	}
	c := &call{peer: p, text: what + " " + q.Encode(), answers: make(chan string, 10)}
	p.program.mu.Lock()
	p.program.last++
	c.number = p.program.last
	p.program.calls[c.number] = c.answers
	p.program.mu.Unlock()
	fmt.Fprintln(p.program.in, c.number, c.text)
	return c
}

// lock asks for a lock.
func (p *peer) lock(name string, args ...any) *call {
	p.Helper()
	return p.call("lock", append([]any{"name", name}, args...)...)
}

// take takes a free lock, and returns its lease and fence.
func (p *peer) take(name string, args ...any) (*call, uint64) {
	p.Helper()
	c := p.lock(name, args...)
	return c, c.hearsNumber("held")
}

// of makes a call for the lease that c has taken.
func (c *call) of(what string, args ...any) *call {
	c.Helper()
	return c.call(what, append([]any{"lease", c.number}, args...)...)
}

// release releases the lease that c has taken.
func (c *call) release() {
	c.Helper()
	c.of("release").hears("released")
}

// answer returns the next answer, which may be an error.
func (c *call) answer() string {
	c.Helper()
	select {
	case text := <-c.answers:
		return text
	case <-c.program.ended:
		c.Fatalf("the program has ended: %v; it said %s", c.program.err, c.program.stderr())
	case <-time.After(c.patience):
		c.Fatalf("no answer to %s", c.text)
	}
	return ""
}

// hears returns the rest of the next answer, which begins with a word.
func (c *call) hears(word string) string {
	c.Helper()
	text := c.answer()
	rest, found := strings.CutPrefix(text+" ", strings.TrimSpace(word)+" ")
	if !found {
		c.Fatalf("%s is answered by %q, want %s", c.text, text, word)
	}
	return strings.TrimSpace(rest)
}

// hearsNumber is hears for an answer with a number.
func (c *call) hearsNumber(word string) uint64 {
	c.Helper()
	text := c.hears(word)
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		c.Fatalf("%s is answered by %s %q", c.text, word, text)
	}
	return n
}

// fails hears an error, which does not contain a secret.
func (c *call) fails(kind string) string {
	c.Helper()
	text := c.hears("error " + kind)
	if strings.Contains(text, token) {
		c.Errorf("an error shows the token: %s", text)
	}
	return text
}

func (p *peer) signal(s syscall.Signal) {
	p.Helper()
	must.OK(p.TB, p.program.cmd.Process.Signal(s))
}

func (p *program) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}
