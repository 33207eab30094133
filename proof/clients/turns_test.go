//go:build linux

package clients

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/server"
)

// Go, Python with threads and with asyncio, Node and Java take turns on one lock ten thousand times, while servers are killed and
// stopped, and answers are lost. Each holder adds one to a number in a file, with no other protection, and checks that no fence before its own was
// as great. Two holders at once would lose an increment. Each also appends its begin and its end to a history, which shows at the
// end that no turn began before the last one had ended, and that fences rose.
func TestLongTurns(t *testing.T) {
	const turns = 10_000
	s := newSite(t, server.Options{})
	f := &faults{t: t, s: s, stop: make(chan struct{})}
	for range 2 {
		f.start("127.0.0.1:0")
	}
	name, file := newName(), filepath.Join(t.TempDir(), "number")
	must.OK(t, os.WriteFile(file, []byte("0 0"), 0o600))
	takers := clientsOfSuite[1:]
	rounds := turns / (len(takers) + 1)
	var peers []*peer
	for i, l := range takers {
		urls := append(f.urls(), s.url)
		peers = append(peers, l.start(t, append(urls[i%3:], urls[:i%3]...)...))
	}
	var running sync.WaitGroup
	running.Go(f.run)
	var counting []*call
	for _, p := range peers {
		counting = append(counting, p.call("count", "name", name, "file", file, "rounds", rounds))
	}
	began := time.Now()
	for range rounds {
		l := take(t, s.c, name)
		note(t, file, "begin", l.Fence())
		n, fence := number(t, file)
		if l.Fence() <= fence {
			t.Errorf("fence %d after %d", l.Fence(), fence)
		}
		must.OK(t, os.WriteFile(file, fmt.Appendf(nil, "%d %d", n+1, l.Fence()), 0o600))
		note(t, file, "end", l.Fence())
		give(t, l)
	}
	for _, c := range counting {
		c.counts(file)
	}
	close(f.stop)
	running.Wait()
	if n, _ := number(t, file); n != rounds*(len(peers)+1) {
		t.Errorf("%d of %d increments are left", n, rounds*(len(peers)+1))
	}
	expect.OK(t, overlap(string(must.Get(os.ReadFile(file+history))(t)), rounds*(len(peers)+1)))
	t.Logf("%d turns in %v; %s", rounds*(len(peers)+1), time.Since(began).Round(time.Second), strings.Join(f.done, ", "))
}

// history is what the name of the file with the history ends in: a line "begin FENCE" and a line "end FENCE" for each turn, by
// one write each, so that their order is that of the writes.
const history = ".history"

func note(t *testing.T, file, what string, fence uint64) {
	t.Helper()
	f := must.Get(os.OpenFile(file+history, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600))(t)
	must.Get(fmt.Fprintf(f, "%s %d\n", what, fence))(t)
	must.OK(t, f.Close())
}

// overlap returns what is wrong with a history: a turn inside another, a fence that is no greater than the one before, or
// another number of turns.
func overlap(text string, turns int) error {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	last := uint64(0)
	for i, line := range lines {
		var what string
		var fence uint64
		if _, err := fmt.Sscan(line, &what, &fence); err != nil {
			return fmt.Errorf("line %d is %q", i+1, line)
		}
		switch {
		case what != []string{"begin", "end"}[i%2]:
			return fmt.Errorf("line %d: fence %d has its %s inside another turn, of fence %d", i+1, fence, what, last)
		case what == "begin" && fence <= last, what == "end" && fence != last:
			return fmt.Errorf("line %d: %s of fence %d after fence %d", i+1, what, fence, last)
		}
		last = fence
	}
	if len(lines) != 2*turns {
		return fmt.Errorf("%d turns have %d lines", turns, len(lines))
	}
	return nil
}

// The checker of overlaps finds them.
func TestOverlap(t *testing.T) {
	t.Parallel()
	for history, right := range map[string]bool{
		"begin 1\nend 1\nbegin 3\nend 3\n": true,
		"begin 1\nbegin 2\nend 1\nend 2\n": false,
		"begin 1\nbegin 2\nend 2\nend 1\n": false,
		"begin 2\nend 2\nbegin 1\nend 1\n": false,
		"begin 1\nend 1\nbegin 1\nend 1\n": false,
		"begin 1\nend 2\nbegin 3\nend 3\n": false,
		"begin 1\nend 1\n":                 false, // one is missing
		"begin 1\nend 1\nbegin 2\n":        false,
	} {
		if err := overlap(history, 2); (err == nil) != right {
			t.Errorf("%q: %v", history, err)
		}
	}
}

// counts waits until a peer has had all its turns, for as long as there are turns.
func (c *call) counts(file string) {
	c.Helper()
	for before := ""; ; {
		select {
		case line := <-c.answers:
			if line != "counted" {
				c.Errorf("%v says %q", c.program.cmd.Args, line)
			}
			return
		case <-time.After(patience):
			now := string(must.Get(os.ReadFile(file))(c.TB))
			if now == before {
				c.Fatalf("%v gets no turn after %s", c.program.cmd.Args, now)
			}
			before = now
		}
	}
}

// faults are those of servers, one at a time.
type faults struct {
	t       *testing.T
	s       *site
	servers []*exec.Cmd
	addrs   []string
	stop    chan struct{}
	done    []string
}

// start starts another server.
func (f *faults) start(addr string) {
	f.t.Helper()
	cmd, at := child(f.t, "serve", f.s.redis, addr)
	f.servers, f.addrs = append(f.servers, cmd), append(f.addrs, at)
}

func (f *faults) urls() (urls []string) {
	for _, a := range f.addrs {
		urls = append(urls, "http://"+a)
	}
	return urls
}

// run breaks something about every second.
func (f *faults) run() {
	counts := map[string]int{}
	for f.sleep(time.Second) {
		i := rand.IntN(2)
		what := []string{"kills", "stops", "spells of lost answers"}[rand.IntN(3)]
		counts[what]++
		switch what {
		case "kills":
			killed(f.servers[i])
			f.start(f.addrs[i])
			f.servers = slices.Delete(f.servers, i, i+1)
			f.addrs = slices.Delete(f.addrs, i, i+1)
		case "stops":
			f.servers[i].Process.Signal(syscall.SIGSTOP)
			f.sleep(2 * time.Second)
			f.servers[i].Process.Signal(syscall.SIGCONT)
		default:
			f.s.lossy.Store(true)
			f.sleep(2 * time.Second)
			f.s.lossy.Store(false)
		}
	}
	for what, n := range counts {
		f.done = append(f.done, fmt.Sprintf("%d %s", n, what))
	}
}

// sleep reports whether the test goes on.
func (f *faults) sleep(d time.Duration) bool {
	select {
	case <-f.stop:
		return false
	case <-time.After(d):
		return true
	}
}
