package redislock

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"strings"
)

//go:embed scripts/*.lua
var sources embed.FS

// script is a Lua script, in a version for each way to publish.
type script [bothWays + 1]version

// version is a script and the name that a server which knows it goes by.
type version struct{ source, sha string }

func (s *script) in(v speech) version { return s[v] }

// publishers are the files that publish in each way.
var publishers = [...]string{classic: "publish", sharded: "spublish", bothWays: "publish_both"}

// compose makes a script of several files: what the last one needs comes first.
func compose(files ...string) *script {
	var s script
	for v := classic; v <= bothWays; v++ {
		s[v] = composeIn(v, files)
	}
	return &s
}

func composeIn(v speech, files []string) version {
	var b strings.Builder
	for _, file := range files {
		if file == "publish" {
			file = publishers[v]
		}
		text, err := sources.ReadFile("scripts/" + file + ".lua")
		if err != nil {
			panic(err) // a file that is not in the binary: no test passes
		}
		b.Write(text)
	}
	sum := sha1.Sum([]byte(b.String()))
	return version{source: b.String(), sha: hex.EncodeToString(sum[:])}
}

var (
	inspectScript = compose("inspect")
	listStrings   = compose("foreign", "list_strings")
	listHashes    = compose("foreign", "list_hashes")
)
