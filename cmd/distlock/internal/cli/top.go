package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/cmd/distlock/internal/advice"
)

func (a *app) topCommand() *cobra.Command {
	every := time.Second
	cmd := &cobra.Command{
		Use:   "top [PREFIX]",
		Short: "Show the locks live, in a terminal",
		Long: `Top shows the locks of the server as they change: those that are waited for most and held
longest first. Its other screen shows the table of "distlock advise": what was seen of each
class of names since the start.

Keys: Tab for the other screen, the arrows and Page Up and Down to move, / for another
prefix, q to quit. Looking at the locks takes a tenth of the time at most.`,
		Example: `  distlock top
  distlock top order: --every 200ms`,
		Args: onePrefix,
		RunE: func(_ *cobra.Command, args []string) error {
			if terminalSize(a.out) == nil {
				return usage("top: the output is not a terminal; want one, or distlock ls or distlock advise")
			}
			return a.withClient(func(ctx context.Context, c *distlock.Client) error {
				return a.top(ctx, c, append(args, "")[0], every)
			})
		},
	}
	cmd.Flags().Var(duration(&every, false), "every", "how often to look")
	return cmd
}

func (a *app) top(ctx context.Context, c *distlock.Client, prefix string, every time.Duration) error {
	s := newScreen(c.Caps().Name, prefix)
	s.look = func(prefix string) look {
		at := time.Now()
		infos, err := list(ctx, c, &lsOptions{prefix: prefix})
		if err != nil {
			err = fmt.Errorf("%s", scrub(reason(err), a.secrets))
		}
		return look{at, time.Since(at), prefix, infos, err}
	}
	s.every = every
	if first := s.look(prefix); first.err != nil {
		return first.err
	}
	_, err := tea.NewProgram(s, tea.WithContext(ctx), tea.WithOutput(a.out.(*printer).w)).Run()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// look is the state of the locks at an instant.
type look struct {
	at     time.Time
	took   time.Duration
	prefix string
	infos  []distlock.Info
	err    error
}

// screen is a picture for a terminal.
type screen struct {
	backend string
	prefix  string
	every   time.Duration
	look    func(prefix string) look

	began    time.Time
	recorder *advice.Recorder
	last     look // that succeeded
	err      error
	classes  bool    // the other table
	typed    *string // a prefix that is being typed
	first    int     // of the rows that are shown
	width    int
	height   int
}

func newScreen(backend, prefix string) *screen {
	return &screen{backend: backend, prefix: prefix, began: time.Now(), recorder: advice.NewRecorder(), width: 80, height: 24}
}

// Init looks for the first time.
func (s *screen) Init() tea.Cmd { return s.lookAfter(0) }

// lookAfter looks after a pause.
func (s *screen) lookAfter(pause time.Duration) tea.Cmd {
	prefix, f := s.prefix, s.look
	return tea.Tick(pause, func(time.Time) tea.Msg { return f(prefix) })
}

// Update takes in a look, a key or a new size of the terminal.
func (s *screen) Update(m tea.Msg) (tea.Model, tea.Cmd) {
	switch m := m.(type) {
	case tea.WindowSizeMsg:
		s.width, s.height = m.Width, m.Height
	case tea.KeyPressMsg:
		return s, s.press(m)
	case look:
		if s.err = m.err; m.err == nil && m.prefix == s.prefix {
			s.last = m
			s.recorder.Add(m.at, m.infos)
		}
		return s, s.lookAfter(max(s.every-m.took, 9*m.took))
	}
	return s, nil
}

// press reacts to a key.
func (s *screen) press(m tea.KeyPressMsg) tea.Cmd {
	key := m.String()
	if s.typed != nil && key != "ctrl+c" {
		s.edit(key, m.Text)
		return nil
	}
	page := max(s.rows(), 1)
	switch key {
	case "q", "ctrl+c", "esc":
		return tea.Quit
	case "tab":
		s.classes, s.first = !s.classes, 0
	case "/":
		typed := s.prefix
		s.typed = &typed
	case "up", "k":
		s.first--
	case "down", "j":
		s.first++
	case "pgup":
		s.first -= page
	case "pgdown", "space":
		s.first += page
	case "home":
		s.first = 0
	}
	return nil
}

// edit changes the prefix that is being typed.
func (s *screen) edit(key, text string) {
	switch typed := []rune(*s.typed); {
	case key == "esc":
		s.typed = nil
	case key == "enter":
		fresh := newScreen(s.backend, *s.typed)
		s.prefix, s.began, s.recorder, s.last, s.first, s.typed = fresh.prefix, fresh.began, fresh.recorder, look{}, 0, nil
	case key == "backspace" && len(typed) > 0:
		*s.typed = string(typed[:len(typed)-1])
	default:
		*s.typed += text
	}
}

// View draws the screen.
func (s *screen) View() tea.View {
	var b strings.Builder
	fmt.Fprintln(&b, truncate(s.title(), s.width))
	fmt.Fprintln(&b, truncate(s.status(), s.width))
	lines := s.table().lines()
	rows := lines[1:]
	s.first = min(max(s.first, 0), max(len(rows)-s.rows(), 0))
	fmt.Fprintf(&b, "\x1b[7m%s\x1b[0m", padded(truncate(lines[0], s.width), s.width))
	for _, row := range rows[s.first:min(s.first+s.rows(), len(rows))] {
		b.WriteString("\n" + truncate(row, s.width))
	}
	v := tea.NewView(b.String())
	v.AltScreen = true
	return v
}

// rows returns how many rows of the table fit.
func (s *screen) rows() int { return max(s.height-3, 1) }

func (s *screen) title() string {
	waiting := 0
	for _, i := range s.last.infos {
		waiting += max(i.WaiterCount, len(i.Waiters))
	}
	where := plain(s.backend)
	if s.prefix != "" {
		where += ", names that begin with " + quoted(s.prefix)
	}
	return fmt.Sprintf("distlock top: %d locks, %d waiters; %s; for %v", len(s.last.infos), waiting, where, time.Since(s.began).Round(time.Second))
}

// status is the second line.
func (s *screen) status() string {
	switch {
	case s.typed != nil:
		return "prefix: " + plain(*s.typed) + "_   (Enter, Esc)"
	case s.err != nil:
		return "NOT LIVE: " + plain(s.err.Error())
	}
	return "Tab: locks or classes   arrows: move   /: prefix   q: quit"
}

func (s *screen) table() *table {
	if s.classes {
		return adviceTable(s.recorder.Usages())
	}
	infos := slices.Clone(s.last.infos)
	slices.SortStableFunc(infos, func(a, b distlock.Info) int {
		if w := max(b.WaiterCount, len(b.Waiters)) - max(a.WaiterCount, len(a.Waiters)); w != 0 {
			return w
		}
		return int(longest(b).Milliseconds() - longest(a).Milliseconds())
	})
	return infoTable(infos, false)
}

// longest returns how long a lock has been held.
func longest(i distlock.Info) (d time.Duration) {
	for _, h := range i.Holders {
		d = max(d, h.Held)
	}
	return d
}
