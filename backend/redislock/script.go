package redislock

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"strings"
)

//go:embed scripts/*.lua
var sources embed.FS

// script is a Lua script and the name that a server which knows it goes by.
type script struct{ source, sha string }

// compose makes a script of several files: what the last one needs comes first.
func compose(files ...string) *script {
	var b strings.Builder
	for _, file := range files {
		text, err := sources.ReadFile("scripts/" + file + ".lua")
		if err != nil {
			panic(err) // a file that is not in the binary: no test passes
		}
		b.Write(text)
	}
	sum := sha1.Sum([]byte(b.String()))
	return &script{source: b.String(), sha: hex.EncodeToString(sum[:])}
}

var (
	inspectScript = compose("inspect")
	listScript    = compose("list")
)
