package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"

	"golang.org/x/text/width"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
)

// plain escapes characters that would move a terminal's cursor or break a table.
func plain(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		s = strconv.Quote(s)
		return s[1 : len(s)-1]
	}
	return s
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
			widths[i] = max(widths[i], columns(cell))
		}
	}
	var lines []string
	for _, row := range t.rows {
		var b strings.Builder
		for i, cell := range row {
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-columns(cell)+2))
			}
		}
		lines = append(lines, b.String())
	}
	return lines
}

// padded adds spaces up to a width.
func padded(line string, width int) string {
	return line + strings.Repeat(" ", max(width-columns(line), 0))
}

// columns returns the width of a text on a terminal.
func columns(s string) int {
	n := 0
	for _, r := range s {
		n += columnsOf(r)
	}
	return n
}

func columnsOf(r rune) int {
	switch kind := width.LookupRune(r).Kind(); {
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	case kind == width.EastAsianWide || kind == width.EastAsianFullwidth:
		return 2
	}
	return 1
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
func truncate(line string, width int) string {
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

// stamp is the layout of RFC 3339 with milliseconds.
const stamp = "2006-01-02T15:04:05.000Z07:00"
