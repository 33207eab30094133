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

// notice is the line on a terminal that says for whom it is waited, and how long.
type notice struct {
	client *distlock.Client
	w      io.Writer
	width  func() int // of the terminal; nil: there is none
	name   atomic.Pointer[string]
}

func newNotice(w io.Writer) *notice {
	n := &notice{w: w}
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

// show keeps the line up to date until the function that it returns is called,
// which removes it.
func (n *notice) show(ctx context.Context) (stop func()) {
	if n.width == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		n.update(ctx)
		fmt.Fprint(n.w, "\r\x1b[K")
	}()
	return func() {
		cancel()
		<-gone
	}
}

func (n *notice) update(ctx context.Context) {
	began := time.Now()
	for pause := 50 * time.Millisecond; ; pause = time.Second {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if name := n.name.Load(); name != nil {
			line := n.line(ctx, *name, time.Since(began))
			fmt.Fprint(n.w, "\r"+cut(line, n.width()-1)+"\x1b[K")
		}
	}
}

func (n *notice) line(ctx context.Context, name string, waited time.Duration) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	who := ""
	if info, err := n.client.Inspect(ctx, name); err == nil && len(info.Holders) > 0 {
		who = ", " + plain(describe(info.Holders))
	}
	return fmt.Sprintf("distlock: waiting for %s%s (%v)", quoted(name), who, waited.Round(time.Second))
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

// cut shortens a line to a width, so that it can be written over.
func cut(line string, width int) string {
	if r := []rune(line); len(r) > width && width > 1 {
		return string(r[:width-1]) + "…"
	}
	return line
}
