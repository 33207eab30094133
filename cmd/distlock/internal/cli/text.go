package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/charmbracelet/x/ansi"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

// joinLines makes one line of several, without repetitions and tabs.
func joinLines(s string) string {
	var lines []string
	for _, line := range strings.Split(s, "\n") {
		if line = strings.ReplaceAll(strings.TrimSpace(line), "\t", " "); line != "" && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.ReplaceAll(strings.Join(lines, "; "), ":; ", ": ")
}

// plain escapes characters that would move a terminal's cursor or break a table.
func plain(s string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		escaped := strconv.QuoteRune(r)
		b.WriteString(escaped[1 : len(escaped)-1])
	}
	return b.String()
}

// quoted formats a name for a message.
func quoted(s string) string { return driver.Quote(s) }

// quotedAll formats names for a message.
func quotedAll(names []string) string {
	var all []string
	for _, name := range names {
		all = append(all, quoted(name))
	}
	return strings.Join(all, ", ")
}

// short rounds a duration to about three digits.
func short(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	}
	return d.Round(time.Minute).String()
}

// table is text in columns, aligned by its width on a terminal: many Chinese, Japanese and Korean
// characters take two columns.
type table struct{ rows [][]string }

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// write writes the rows.
func (t *table) write(w io.Writer) error {
	_, err := io.WriteString(w, strings.Join(t.lines(), "\n")+"\n")
	return err
}

// lines returns the rows with two spaces between columns.
func (t *table) lines() []string {
	var widths []int
	for _, row := range t.rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], ansi.StringWidth(cell))
		}
	}
	var lines []string
	for _, row := range t.rows {
		var b strings.Builder
		for i, cell := range row {
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-ansi.StringWidth(cell)+2))
			}
		}
		lines = append(lines, b.String())
	}
	return lines
}

// padded adds spaces up to a width.
func padded(line string, width int) string {
	return line + strings.Repeat(" ", max(width-ansi.StringWidth(line), 0))
}

// describe formats the first holder, and the number of others.
func describe(holders []distlock.Holder) string {
	var b strings.Builder
	b.WriteString("held by ")
	if who := holders[0].String(); who != "" {
		b.WriteString(who)
	} else {
		b.WriteString("another client")
	}
	if d := holders[0].Held; d >= 0 {
		fmt.Fprintf(&b, " for %s", short(d))
	}
	if n := len(holders) - 1; n > 0 {
		fmt.Fprintf(&b, " and %d more", n)
	}
	return b.String()
}

// truncate shortens a line to the width of a terminal, so that it can be overwritten.
func truncate(line string, width int) string { return ansi.Truncate(line, max(width, 1), "…") }

// stamp is the layout of RFC 3339 with milliseconds.
const stamp = "2006-01-02T15:04:05.000Z07:00"

// printer writes to the standard output and remembers the first error. It is for one goroutine.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) Write(b []byte) (int, error) {
	n, err := p.w.Write(b)
	p.err = cmp.Or(p.err, err)
	return n, err
}

// terminalSize returns a function that returns the columns and lines of the terminal that the output of
// the program goes to; nil if there is none.
func terminalSize(w io.Writer) func() (width, height int) {
	if p, ok := w.(*printer); ok {
		w = p.w
	}
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return func() (width, height int) {
		if width, height, err := term.GetSize(int(f.Fd())); err == nil && width > 0 && height > 0 {
			return width, height
		}
		return 80, 24
	}
}

// progress is one line of a terminal that is updated. Without a terminal, it shows nothing.
type progress struct {
	w    io.Writer
	size func() (width, height int) // nil without a terminal
}

func newProgress(w io.Writer) progress { return progress{w, terminalSize(w)} }

// show replaces the line.
func (p progress) show(format string, args ...any) {
	if p.size != nil {
		width, _ := p.size()
		fmt.Fprint(p.w, "\r"+truncate(fmt.Sprintf(format, args...), width-1)+"\x1b[K")
	}
}

// clear removes the line.
func (p progress) clear() {
	if p.size != nil {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

// notice reports what a run waits for, and for how long: on a terminal in one line that it updates,
// elsewhere in a line now and then, so that a log shows why nothing happens.
type notice struct {
	progress
	client *distlock.Client // nil while the server can't be reached
	quiet  bool
	next   time.Duration              // between lines without a terminal, while there are answers
	fresh  time.Duration              // until then an attempt without an answer says that there still is none
	name   atomic.Pointer[string]     // of the lock that the run waits for
	last   atomic.Pointer[unanswered] // the last attempt that got no answer
	hide   func(string) string        // removes secrets
}

// unanswered is an attempt that got no answer.
type unanswered struct {
	why error
	at  time.Time
}

// The pauses before the first line and between later ones, without a terminal.
const (
	firstReport = 5 * time.Second
	nextReports = 30 * time.Second
)

func newNotice(w io.Writer, quiet bool, hide func(string) string) *notice {
	return &notice{progress: newProgress(w), quiet: quiet, hide: hide, next: nextReports, fresh: 2 * nextReports}
}

// observer records which lock the run waits for, and why an attempt got no answer.
func (n *notice) observer() *distlock.Observer {
	return &distlock.Observer{
		Waiting: func(e distlock.Event) { n.name.Store(&e.Name) },
		Unanswered: func(e distlock.Event) {
			if e.Op != "renew" {
				n.last.Store(&unanswered{e.Err, time.Now()})
			}
		},
	}
}

// start reports the wait until stop is called, which removes the line from a terminal. unreachable is
// the reason why there is no client yet.
func (n *notice) start(ctx context.Context, unreachable error) (stop func()) {
	if n.quiet {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		n.report(ctx, unreachable)
	}()
	return func() {
		cancel()
		<-gone
	}
}

// report writes lines until ctx ends.
func (n *notice) report(ctx context.Context, unreachable error) {
	began, pause, next := time.Now(), firstReport, min(n.next, nextReports)
	if n.size != nil {
		defer n.clear()
		pause, next = 50*time.Millisecond, time.Second
	}
	said := began.Add(-n.next)
	for ; wait.Sleep(ctx, pause) == nil; pause = next {
		if n.size == nil && unreachable == nil && time.Since(said) < n.next && n.silence() == nil {
			continue
		}
		said = time.Now()
		switch line := n.line(ctx, unreachable, time.Since(began)); {
		case line == "" || ctx.Err() != nil:
		case n.size != nil:
			n.show("%s", line)
		default:
			fmt.Fprintln(n.w, line)
		}
	}
}

// silence returns why there is no answer at present; nil if there is one.
func (n *notice) silence() error {
	if last := n.last.Load(); last != nil && time.Since(last.at) < n.fresh {
		return last.why
	}
	return nil
}

// line describes the wait; it is empty if there is none.
func (n *notice) line(ctx context.Context, unreachable error, waited time.Duration) string {
	what := ""
	switch name := n.name.Load(); {
	case unreachable != nil:
		what = "the server (" + plain(n.hide(reason(unreachable))) + ")"
	case name != nil:
		what = quoted(*name) + n.holders(ctx, *name)
	default:
		return ""
	}
	return fmt.Sprintf("distlock: waiting for %s (%v)", what, waited.Round(time.Second))
}

// holders describes the holders of a lock, if the server answers within a second, or why nothing is known of them.
func (n *notice) holders(ctx context.Context, name string) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	info, err := n.client.Inspect(ctx, name)
	silence := n.silence()
	switch {
	case len(info.Holders) > 0:
		return ", " + plain(describe(info.Holders))
	case silence != nil:
		return "; no answer: " + plain(n.hide(reason(silence)))
	case err != nil && !errors.Is(err, distlock.ErrUnsupported) && ctx.Err() == nil: // some locks are not shown, but answered
		return "; no answer: " + plain(n.hide(reason(err)))
	}
	return ""
}

// reason formats an error for the middle of a sentence.
func reason(err error) string { return strings.TrimPrefix(err.Error(), "distlock: ") }

// didYouMean asks for the word that is meant by a mistyped one, each after a prefix; "" if there is none.
func didYouMean(typed string, words []string, prefix string) string {
	known := &cobra.Command{SuggestionsMinimumDistance: 2}
	for _, word := range words {
		known.AddCommand(&cobra.Command{Use: word, Run: func(*cobra.Command, []string) {}})
	}
	found := known.SuggestionsFor(typed)
	if len(found) == 0 || typed == "" {
		return ""
	}
	return "did you mean " + prefix + strings.Join(found, " or "+prefix) + "?"
}

// badFlag says what would be right in place of a flag that is not as it should be.
func badFlag(cmd *cobra.Command, err error, more string) error {
	unknown := (*pflag.NotExistError)(nil)
	text, _, isBool := strings.Cut(err.Error(), ": strconv.ParseBool: ")
	switch {
	case isBool:
		return usage("%s: want true or false%s", text, more)
	case !errors.As(err, &unknown):
		return usage("%w%s", err, more)
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return usage("%w%s; %s", err, more, cmp.Or(didYouMean(unknown.GetSpecifiedName(), names, "--"), "see "+cmd.CommandPath()+" --help"))
}

// errWatched says what a refusal leaves open where holds end only for those who watch them.
var errWatched = errors.New("if its holder has died, the lock is free only for one who waits for longer than its TTL (--wait), since the store has no clock that ends it")
