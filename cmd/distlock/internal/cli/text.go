package cli

import (
	"strconv"
	"strings"
	"time"
	"unicode"

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
