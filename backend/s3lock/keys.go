package s3lock

import "github.com/distlock/distlock/internal/record"

const (
	// keyRoom is how long the part of a key may be that stands for a name: stores over a file system have no longer names
	// of files.
	keyRoom = 200

	// probeMark begins the key of a probe. No name's has a p behind a !.
	probeMark = "!probe-"

	// maxPrefix leaves room for a name: a key has 1024 bytes at most.
	maxPrefix = 512
)

// keys are the parts of keys that stand for names. Each byte that may have a meaning in a key, a URL or a path is encoded.
var keys = record.Encoding{Escape: "!%02X", Hash: "!h", Room: keyRoom, Plain: func(name string, i int) bool {
	return isPlain(name[i]) || name[i] == '.' && i > 0
}}

func isPlain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}
