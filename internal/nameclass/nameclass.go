// Package nameclass puts names of locks into few classes, for metrics and tables: "order:5138" and "order:5139" are
// both of the class "order:*".
package nameclass

import (
	"strings"
	"sync"
)

// Most is how many classes there are, without Other. A metric with more attribute sets than a collector keeps
// would lose all of its attributes.
const Most = 200

// Other is the class of names that came when there were Most classes.
const Other = "other"

// Classes knows the classes so far. It is safe for concurrent use.
type Classes struct {
	of func(name string) string

	mu    sync.Mutex
	known map[string]bool
}

// New returns Classes by a function; nil stands for Of.
func New(of func(name string) string) *Classes {
	if of == nil {
		of = Of
	}
	return &Classes{of: of, known: map[string]bool{}}
}

// Of returns the class of a name, or Other.
func (c *Classes) Of(name string) string {
	class := c.of(name)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known[class] && len(c.known) >= Most {
		return Other
	}
	c.known[class] = true
	return class
}

// Of returns a name with a star in place of each segment that is a number, hexadecimal or a UUID. Segments are
// separated by any of :/.-_{}[]()#@=,| and spaces. A word such as "dead" or "cafe" is not taken for a number: without a
// digit, no segment is.
func Of(name string) string {
	var b strings.Builder
	for rest := name; rest != ""; {
		if n := uuidPrefix(rest); n > 0 {
			b.WriteByte('*')
			rest = rest[n:]
			continue
		}
		end := strings.IndexAny(rest, separators)
		if end < 0 {
			end = len(rest)
		}
		if segment := rest[:end]; isNumber(segment) {
			b.WriteByte('*')
		} else {
			b.WriteString(segment)
		}
		if rest = rest[end:]; rest != "" {
			b.WriteByte(rest[0])
			rest = rest[1:]
		}
	}
	return b.String()
}

const separators = ":/.-_ {}[]()#@=,|"

// isNumber reports whether a segment is a decimal number, or a hexadecimal one of at least six digits.
func isNumber(segment string) bool {
	digits, letters := 0, 0
	for _, r := range segment {
		switch {
		case '0' <= r && r <= '9':
			digits++
		case 'a' <= r && r <= 'f' || 'A' <= r && r <= 'F':
			letters++
		default:
			return false
		}
	}
	return digits > 0 && (letters == 0 || digits+letters >= 6)
}

// uuidPrefix returns the length of the UUID that a text begins with, or 0.
func uuidPrefix(s string) int {
	const length = 36
	if len(s) < length || len(s) > length && !strings.ContainsRune(separators, rune(s[length])) {
		return 0
	}
	for i := range length {
		switch c := s[i]; {
		case i == 8 || i == 13 || i == 18 || i == 23:
			if c != '-' {
				return 0
			}
		case !('0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'):
			return 0
		}
	}
	return length
}
