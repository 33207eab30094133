package s3lock

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

const (
	// keyRoom is how long the part of a key may be that stands for a name: stores over a file system have no longer names
	// of files.
	keyRoom = 200

	// hashMark begins the hash of a name. What encode makes has no h behind a !.
	hashMark = "!h"

	probeMark = "!probe-"

	// maxPrefix leaves room for a name: a key has 1024 bytes at most.
	maxPrefix = 512
)

// keyOf returns the part of the key that stands for name. No two names have the same.
func keyOf(name string) string {
	text := encode(name)
	if len(text) <= keyRoom {
		return text
	}
	hash := sha256.Sum256([]byte(name))
	return cut(text) + hashMark + hex.EncodeToString(hash[:])
}

// keysWith returns what the keys of all names with a prefix begin with. Other keys may begin with it too.
func keysWith(prefix string) string { return cut(encode(prefix)) }

// cut returns the part of an encoded name that stands in the key also if the name is long.
func cut(text string) string { return text[:min(len(text), keyRoom-len(hashMark)-2*sha256.Size)] }

// encode returns name with each byte that may have a meaning in a key, a URL or a path as ! and two digits.
func encode(name string) string {
	var s strings.Builder
	for i := range len(name) {
		c := name[i]
		if isPlain(c) || c == '.' && i > 0 {
			s.WriteByte(c)
		} else {
			fmt.Fprintf(&s, "!%02X", c)
		}
	}
	return s.String()
}

func isPlain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}
