package zklock

import (
	"strings"
	"unicode/utf8"
)

// A lock's path is its name: "orders/555" is /orders/555 below the chroot. What can't
// stand in a path as it is is written as %XX, as in URLs, byte by byte:
//
//   - the characters that ZooKeeper refuses;
//   - the segments "." and "..", and "zookeeper" at the top, which is ZooKeeper's;
//   - below another name, whatever that name's lock would take for its own: "locks",
//     "leases", and what looks like a lock's node;
//   - a % that would otherwise be read as the beginning of such a thing.
//
// An empty segment is %00, which no name has. So every name has a path of its own, and
// plain names have the paths that people write for Curator.

// emptySegment stands for a segment without characters.
const emptySegment = "%00"

// pathOf is where the lock called name is.
func pathOf(name string) string {
	var b strings.Builder
	b.Grow(len(name) + 1)
	top := true
	for segment := range strings.SplitSeq(name, "/") {
		b.WriteByte('/')
		b.WriteString(escapeSegment(segment, top))
		top = false
	}
	return b.String()
}

// nameOf undoes pathOf; false for a path that no name has.
func nameOf(path string) (string, bool) {
	path, ok := strings.CutPrefix(path, "/")
	if !ok {
		return "", false
	}
	var segments []string
	for segment := range strings.SplitSeq(path, "/") {
		segments = append(segments, unescapeSegment(segment))
	}
	name := strings.Join(segments, "/")
	return name, pathOf(name) == "/"+path
}

func escapeSegment(s string, top bool) string {
	switch {
	case s == "":
		return emptySegment
	case s == ".", s == "..", top && s == reserved:
		return escapeBytes(s[:1]) + s[1:]
	case !top && isOurs(s):
		return escapeRunes(s, unlike)
	}
	return escapeRunes(s, "")
}

// reserved is the node that ZooKeeper keeps for itself.
const reserved = "zookeeper"

// isOurs: the lock whose path is the parent would take the segment for its own.
func isOurs(segment string) bool {
	if segment == locksNode || segment == leasesNode {
		return true
	}
	_, is := parseNode(segment)
	return is
}

// escapeRunes also escapes the letters in more.
func escapeRunes(s, more string) string {
	plain := func(i int, r rune, n int) bool {
		return !forbidden(r, n) && !isEscape(s[i:]) && !strings.ContainsRune(more, r)
	}
	i, n := 0, 0
	for ; i < len(s); i += n {
		var r rune
		if r, n = utf8.DecodeRuneInString(s[i:]); !plain(i, r, n) {
			break
		}
	}
	if i == len(s) {
		return s
	}
	var b strings.Builder
	b.WriteString(s[:i])
	for ; i < len(s); i += n {
		var r rune
		if r, n = utf8.DecodeRuneInString(s[i:]); plain(i, r, n) {
			b.WriteString(s[i : i+n])
		} else {
			b.WriteString(escapeBytes(s[i : i+n]))
		}
	}
	return b.String()
}

// forbidden: ZooKeeper's server refuses paths with the character, which it looks at in
// UTF-16. What is no UTF-8 can't be sent.
func forbidden(r rune, size int) bool {
	switch {
	case r == utf8.RuneError && size == 1:
		return true
	case r <= 0x1f, r >= 0x7f && r <= 0x9f, r >= 0xd800 && r <= 0xf8ff, r >= 0xfff0:
		return true
	}
	return false
}

const hexDigits = "0123456789ABCDEF"

func escapeBytes(s string) string {
	b := make([]byte, 0, 3*len(s))
	for i := range len(s) {
		b = append(b, '%', hexDigits[s[i]>>4], hexDigits[s[i]&15])
	}
	return string(b)
}

// isEscape: s begins with what escapeBytes writes.
func isEscape(s string) bool {
	return len(s) >= 3 && s[0] == '%' && strings.IndexByte(hexDigits, s[1]) >= 0 && strings.IndexByte(hexDigits, s[2]) >= 0
}

func unescapeSegment(s string) string {
	if s == emptySegment {
		return ""
	}
	if !strings.Contains(s, "%") {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if !isEscape(s[i:]) {
			b = append(b, s[i])
			continue
		}
		b = append(b, byte(strings.IndexByte(hexDigits, s[i+1])<<4|strings.IndexByte(hexDigits, s[i+2])))
		i += 2
	}
	return string(b)
}
