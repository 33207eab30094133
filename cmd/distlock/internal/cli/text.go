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

// plain is s as it may be printed: what would move the cursor of a terminal, or
// break a table, is escaped.
func plain(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		s = strconv.Quote(s)
		return s[1 : len(s)-1]
	}
	return s
}

// quoted is a name in a message.
func quoted(s string) string { return driver.Quote(s) }

// quotedAll is a list of names in a message.
func quotedAll(names []string) string {
	var all []string
	for _, name := range names {
		all = append(all, quoted(name))
	}
	return strings.Join(all, ", ")
}

// short is a duration for people: three digits or so of it matter.
func short(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	}
	return d.Round(time.Minute).String()
}

// table is text in columns, aligned by how wide a terminal shows it: many characters of
// Chinese, Japanese and Korean are as wide as two of others.
type table struct{ rows [][]string }

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// write writes the rows, with two spaces between columns.
func (t *table) write(w io.Writer) error {
	var widths []int
	for _, row := range t.rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], columns(cell))
		}
	}
	var b strings.Builder
	for _, row := range t.rows {
		for i, cell := range row {
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-columns(cell)+2))
			}
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// columns returns how many columns of a terminal a text takes.
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

// truncate shortens a line to the columns of a terminal, so that it can be written over.
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

// stamp is RFC 3339 with milliseconds.
const stamp = "2006-01-02T15:04:05.000Z07:00"
