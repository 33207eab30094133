//go:build linux

package clients

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/must"
)

// promise is one that the client of each language keeps.
type promise struct {
	name string // on docs/clients.md
	keep func(*cell)

	without string // names of the clients for which it makes no sense
}

func (p promise) isFor(l *language) bool { return !slices.Contains(strings.Fields(p.without), l.name) }

// suite returns the promises of clients, as drivertest has those of backends.
func suite() []promise {
	return slices.Concat(usePromises, faultPromises, endPromises, argumentPromises)
}

// clientsOfSuite have a column in the table.
var clientsOfSuite = []*language{
	{name: "go", title: "Go", program: func(testing.TB) *exec.Cmd { return ourselves("go") }},
	languages[0],
	{name: "asyncio", title: "Python, asyncio", program: func(tb testing.TB) *exec.Cmd {
		return command(tb, "python3", "-W", "error", "programs/tasks.py")
	}},
	languages[1],
	languages[2],
}

// naive is a client that sends each call once, believes what it hears, and checks nothing. The suite must find that it keeps no promise.
var naive = &language{name: "naive", program: func(testing.TB) *exec.Cmd { return ourselves("naive") }}

// known are the promises that clients do not keep yet. They must be broken: what is kept fails the test, and goes from here.
var known = []struct{ promise, languages, reason string }{
	{"a lease ends with its maximum hold, and says so", "python asyncio", "there is none"},
}

// reasonOf returns why a client is known to break a promise; empty: it is not.
func reasonOf(p promise, l *language) string {
	if l == naive {
		return "it does nothing for it"
	}
	for _, k := range known {
		if k.promise == p.name && slices.Contains(strings.Fields(k.languages), l.name) {
			return k.reason
		}
	}
	return ""
}

const (
	cellsAtOnce   = 16
	knownPatience = 3 * time.Second // with a promise that is known to be broken
)

// Each client keeps each promise, and a client that does nothing for them keeps none.
func TestSuite(t *testing.T) {
	t.Parallel()
	slots := make(chan struct{}, cellsAtOnce)
	var promises sync.WaitGroup
	for _, p := range suite() {
		promises.Go(func() {
			t.Run(strings.ReplaceAll(p.name, "/", "|"), func(t *testing.T) {
				var cells sync.WaitGroup
				for _, l := range append(slices.Clone(clientsOfSuite), naive) {
					if p.isFor(l) {
						cells.Go(func() {
							slots <- struct{}{}
							defer func() { <-slots }()
							t.Run(l.name, func(t *testing.T) { ask(t, p, l) })
						})
					}
				}
				cells.Wait()
			})
		})
	}
	promises.Wait()
}

// ask asks a client for a promise.
func ask(t *testing.T, p promise, l *language) {
	c := &cell{TB: t, l: l, patience: patience}
	reason := reasonOf(p, l)
	if reason == "" {
		p.keep(c)
		return
	}
	c.broken, c.patience = true, knownPatience
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.keep(c)
	}()
	<-done
	switch {
	case len(c.found) > 0:
		t.Logf("broken (%s): %s", reason, strings.Join(c.found, "; "))
	case l == naive:
		t.Error("the suite does not see that this client does nothing for the promise")
	default:
		t.Error("the promise is kept now: take its line out of known, and write docs/clients.md anew with -args -save")
	}
}

// cell is a promise of a client. What is wrong with one that is known to be broken is noted, and fails nothing.
type cell struct {
	testing.TB
	l        *language
	patience time.Duration // for what isn't meant to take long
	broken   bool

	mu    sync.Mutex
	found []string
}

func (c *cell) note(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.found = append(c.found, strings.TrimSpace(text))
}

func (c *cell) Error(args ...any) {
	c.Helper()
	if c.broken {
		c.note(fmt.Sprintln(args...))
	} else {
		c.TB.Error(args...)
	}
}

func (c *cell) Errorf(format string, args ...any) {
	c.Helper()
	c.Error(fmt.Sprintf(format, args...))
}

func (c *cell) Fatal(args ...any) {
	c.Helper()
	c.Error(args...)
	c.FailNow()
}

func (c *cell) Fatalf(format string, args ...any) {
	c.Helper()
	c.Fatal(fmt.Sprintf(format, args...))
}

func (c *cell) FailNow() {
	if !c.broken {
		c.TB.FailNow()
	}
	c.note("failed")
	runtime.Goexit()
}

// eventually waits until something holds.
func (c *cell) eventually(what string, holds func() bool) {
	c.Helper()
	for end := time.Now().Add(c.patience); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			c.Fatalf("never so: %s", what)
		}
	}
}

// The cells of a language share a program, but for those that end or interrupt theirs.
var sharedPrograms = struct {
	sync.Mutex
	byLanguage map[*language]*program
}{byLanguage: map[*language]*program{}}

// client makes a client of a rig in the program that the cells share. The rig's URL comes behind those of more.
func (c *cell) client(r *rig, more ...string) *peer {
	c.Helper()
	sharedPrograms.Lock()
	p := sharedPrograms.byLanguage[c.l]
	if p == nil || p.hasEnded() {
		p = c.l.run(c)
		sharedPrograms.byLanguage[c.l] = p
	}
	sharedPrograms.Unlock()
	return c.opened(p, r, more)
}

// alone makes a client of a rig in a program of its own.
func (c *cell) alone(r *rig) *peer {
	c.Helper()
	p := c.l.run(c)
	c.Cleanup(p.kill)
	return c.opened(p, r, nil)
}

func (c *cell) opened(program *program, r *rig, more []string) *peer {
	c.Helper()
	p := &peer{TB: c, program: program, patience: patience}
	args := []any{"urls", strings.Join(append(more, r.url), ",")}
	if r.tokens != "" {
		args = append(args, "token", token)
	}
	p.open(args...)
	p.patience = c.patience
	return p
}

func stopShared() {
	for _, p := range sharedPrograms.byLanguage {
		p.kill()
	}
}

var save = flag.Bool("save", false, "write the table of docs/clients.md anew")

const page = "../../docs/clients.md"

// table is the suite as the page has it.
func table() string {
	var b strings.Builder
	b.WriteString("| promise |")
	for _, l := range clientsOfSuite {
		b.WriteString(" " + l.title + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(clientsOfSuite)) + "\n")
	for _, p := range suite() {
		b.WriteString("| " + p.name + " |")
		for _, l := range clientsOfSuite {
			mark := "yes"
			if !p.isFor(l) {
				mark = "–"
			} else if reasonOf(p, l) != "" {
				mark = "not yet"
			}
			b.WriteString(" " + mark + " |")
		}
		b.WriteString("\n")
	}
	return b.String()
}

// The page has the suite's table, and each line of known names a promise.
func TestTable(t *testing.T) {
	text := string(must.Get(os.ReadFile(page))(t))
	begin := strings.Index(text, "| promise |")
	if begin < 0 {
		t.Fatal("docs/clients.md has no table of promises")
	}
	end := begin + strings.Index(text[begin:]+"\n\n", "\n\n") + 1
	if *save {
		must.OK(t, os.WriteFile(page, []byte(text[:begin]+table()+text[end:]), 0o644))
	} else if text[begin:end] != table() {
		t.Errorf("docs/clients.md has another table than the suite: go test -run TestTable ./proof/clients -args -save")
	}
	var names []string
	for _, p := range suite() {
		if slices.Contains(names, p.name) {
			t.Errorf("two promises are %q", p.name)
		}
		names = append(names, p.name)
	}
	for _, k := range known {
		if !slices.Contains(names, k.promise) {
			t.Errorf("known has %q, which is no promise", k.promise)
		}
	}
}
