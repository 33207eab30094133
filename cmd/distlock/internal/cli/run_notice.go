package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/term"

	"github.com/distlock/distlock"
)

// notice says what a run waits for, and how long: on a terminal in a line that is kept up
// to date, elsewhere in a line now and then, so that a log shows why nothing happens.
type notice struct {
	client *distlock.Client // nil while the server can't be reached
	w      io.Writer
	quiet  bool
	width  func() int             // of the terminal; nil: there is none
	name   atomic.Pointer[string] // of the lock that is waited for
	hide   func(string) string    // keeps secrets out of a line
}

// The pauses before the first and between later lines off a terminal.
const (
	firstReport = 5 * time.Second
	nextReports = 30 * time.Second
)

func newNotice(w io.Writer, quiet bool, hide func(string) string) *notice {
	n := &notice{w: w, quiet: quiet, hide: hide}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		n.width = func() int {
			if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
				return width
			}
			return 80
		}
	}
	return n
}

// observer tells the notice which lock is waited for.
func (n *notice) observer() *distlock.Observer {
	return &distlock.Observer{Waiting: func(e distlock.Event) { n.name.Store(&e.Name) }}
}

// show says what is waited for until the function that it returns is called, which
// removes the line from a terminal. unreachable is why there is no client yet.
func (n *notice) show(ctx context.Context, unreachable error) (stop func()) {
	if n.quiet {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if n.width == nil {
			n.report(ctx, unreachable)
			return
		}
		n.update(ctx, unreachable)
		fmt.Fprint(n.w, "\r\x1b[K")
	}()
	return func() {
		cancel()
		<-gone
	}
}

// update keeps a line of a terminal up to date until ctx ends.
func (n *notice) update(ctx context.Context, unreachable error) {
	began := time.Now()
	for pause := 50 * time.Millisecond; pausing(ctx, pause); pause = time.Second {
		if line := n.line(ctx, unreachable, time.Since(began)); line != "" {
			fmt.Fprint(n.w, "\r"+cut(line, n.width()-1)+"\x1b[K")
		}
	}
}

// report writes a line now and then until ctx ends.
func (n *notice) report(ctx context.Context, unreachable error) {
	began := time.Now()
	for pause := firstReport; pausing(ctx, pause); pause = nextReports {
		if line := n.line(ctx, unreachable, time.Since(began)); line != "" && ctx.Err() == nil {
			fmt.Fprintln(n.w, line)
		}
	}
}

// pausing waits for d, and reports false if ctx ends before.
func pausing(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// line says what is waited for; it is empty if nothing is.
func (n *notice) line(ctx context.Context, unreachable error, waited time.Duration) string {
	what := ""
	switch name := n.name.Load(); {
	case unreachable != nil:
		what = "the server (" + n.hide(reason(unreachable)) + ")"
	case name != nil:
		what = quoted(*name) + n.holders(ctx, *name)
	default:
		return ""
	}
	return fmt.Sprintf("distlock: waiting for %s (%v)", what, waited.Round(time.Second))
}

// holders says who holds a lock, as far as that is known within a second.
func (n *notice) holders(ctx context.Context, name string) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	info, err := n.client.Inspect(ctx, name)
	if err != nil || len(info.Holders) == 0 {
		return ""
	}
	return ", " + plain(describe(info.Holders))
}

// describe tells of the holders: who, how long, and how many more.
func describe(holders []distlock.Holder) string {
	var b strings.Builder
	b.WriteString("held by ")
	if who := holders[0].String(); who != "" {
		b.WriteString(who)
	} else {
		b.WriteString("someone else")
	}
	if d := holders[0].Held; d >= 0 {
		fmt.Fprintf(&b, " for %s", short(d))
	}
	if n := len(holders) - 1; n > 0 {
		fmt.Fprintf(&b, " and %d more", n)
	}
	return b.String()
}

// cut shortens a line to the columns of a terminal, so that it can be written over.
func cut(line string, width int) string {
	if columns(line) <= width || width < 2 {
		return line
	}
	taken := 0
	for i, r := range line {
		if taken += columnsOf(r); taken > width-1 {
			return line[:i] + "…"
		}
	}
	return line
}
