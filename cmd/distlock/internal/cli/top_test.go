//go:build linux

package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/testkit/must"
	"golang.org/x/sys/unix"
)

// Locks appear and go while top is open; its keys show the classes, choose another prefix, and end it.
func TestTop(t *testing.T) {
	t.Parallel()
	url := lockFile(t)
	first, release := hold(t, url, "door")
	keys, shown, tty := terminals(t)
	must.OK(t, unix.IoctlSetWinsize(int(keys.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 20, Col: 150}))
	p := command(t, url, "top", "--every", "10ms").atTerminal(tty)
	// Only cells that change are drawn: words are awaited where other characters, or none, were before.
	shown.await(t, "door")
	second, releaseSecond := hold(t, url, "window")
	shown.await(t, "window")
	press(t, keys, "\t")
	shown.await(t, "CLASS")
	press(t, keys, "/door\r")
	shown.await(t, "begin")
	press(t, keys, "q")
	p.must(0)
	release()
	releaseSecond()
	first.must(0)
	second.must(0)
}

func TestTopWantsATerminal(t *testing.T) {
	t.Parallel()
	finishWith(t, lockFile(t), 64, "top").errors.await(t, "the output is not a terminal")
}

// screenOf returns a screen of a size with some locks.
func screenOf(width, height, locks int) *screen {
	s := newScreen("memory", "")
	s.Update(tea.WindowSizeMsg{Width: width, Height: height})
	var infos []distlock.Info
	for i := range locks {
		infos = append(infos, distlock.Info{
			Name: fmt.Sprintf("订单:%d", i), Mode: distlock.Exclusive, WaiterCount: i,
			Holders: []distlock.Holder{{Mode: distlock.Exclusive, Held: time.Minute, Left: -1, Meta: map[string]string{"program": "shop\x1b[2J"}}},
		})
	}
	s.look = func(prefix string) look { return look{at: time.Now(), prefix: prefix, infos: infos} }
	s.Update(s.look(""))
	return s
}

// typed presses a key.
func (s *screen) typeKey(code rune, text string) { s.Update(tea.KeyPressMsg{Code: code, Text: text}) }

// The screen is not larger than the terminal at any size and after any key, and texts of other programs move no cursor.
func TestScreenFits(t *testing.T) {
	for _, size := range [][2]int{{150, 40}, {80, 24}, {20, 5}, {1, 1}} {
		s := screenOf(size[0], size[1], 100)
		for _, key := range []rune{0, tea.KeyDown, tea.KeyPgDown, tea.KeyEnd, tea.KeyTab, tea.KeyDown, tea.KeyUp, tea.KeyPgUp, '/'} {
			s.typeKey(key, "")
			text := s.View().Content
			lines := strings.Split(strings.NewReplacer("\x1b[7m", "", "\x1b[0m", "").Replace(text), "\n")
			if len(lines) > max(size[1], 4) {
				t.Errorf("%v: %d lines after %q", size, len(lines), key)
			}
			for _, line := range lines {
				if ansi.StringWidth(line) > max(size[0], 2) && size[0] > 1 || strings.ContainsRune(line, '\x1b') {
					t.Errorf("%v: %q after %q", size, line, key)
				}
			}
		}
	}
}

// The locks that are waited for most are first, and the arrows move down to the last one and no further.
func TestScreenOrder(t *testing.T) {
	s := screenOf(150, 13, 100)
	if text := s.View().Content; !strings.Contains(text, "订单:99 ") || strings.Contains(text, "订单:89 ") {
		t.Errorf("at the start:\n%s", text)
	}
	for range 30 {
		s.typeKey(tea.KeyPgDown, "")
		s.View()
	}
	if text := s.View().Content; !strings.Contains(text, "订单:0 ") || !strings.Contains(text, "订单:9 ") || strings.Contains(text, "订单:10 ") {
		t.Errorf("at the end:\n%s", text)
	}
}

// Errors are shown, and what was seen stays.
func TestScreenOfAnOutage(t *testing.T) {
	s := screenOf(150, 13, 2)
	s.Update(look{at: time.Now(), err: fmt.Errorf("connection refused")})
	if text := s.View().Content; !strings.Contains(text, "NOT LIVE: connection refused") || !strings.Contains(text, "订单:1") {
		t.Errorf("got\n%s", text)
	}
	s.Update(s.look(""))
	if text := s.View().Content; strings.Contains(text, "NOT LIVE") {
		t.Errorf("after it:\n%s", text)
	}
}
