package redislock

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
)

//go:embed scripts/*.lua
var sources embed.FS

// script is a Lua script, in a version for each way to publish.
type script [redisconn.PubSubSharded + 1]version

// version is a script and the name that a server which knows it goes by.
type version struct{ source, sha string }

func (s *script) in(mode redisconn.PubSubMode) version { return s[mode] }

// publishers are the files that publish in each way.
var publishers = [...]string{redisconn.PubSubClassic: "publish", redisconn.PubSubSharded: "spublish"}

// compose makes a script of several files: what the last one needs comes first.
func compose(files ...string) *script {
	var s script
	for v := redisconn.PubSubClassic; v <= redisconn.PubSubSharded; v++ {
		s[v] = composeIn(v, files)
	}
	return &s
}

func composeIn(v redisconn.PubSubMode, files []string) version {
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

// run runs a script, whose first key says where.
func (b *Backend) run(ctx context.Context, s *script, keys, args []string) (any, error) {
	return b.runBy(ctx, s, keys, args, func(command []string) (any, error) { return b.client.Do(ctx, keys[0], command) })
}

// runBy runs a script that send sends.
func (b *Backend) runBy(ctx context.Context, s *script, keys, args []string, send func(command []string) (any, error)) (any, error) {
	mode, err := b.pubsub.Detect(ctx, b.client)
	if err != nil {
		return nil, explain(err)
	}
	v := s.in(mode)
	command := make([]string, 0, 3+len(keys)+len(args))
	command = append(command, "EVALSHA", v.sha, itoa(len(keys)))
	command = append(append(command, keys...), args...)
	reply, err := send(command)
	if err == nil {
		return reply, nil
	}
	if re := (*redisconn.ReplyError)(nil); errors.As(err, &re) && re.HasCode("NOSCRIPT") {
		// The server is new or was restarted. It has not run anything.
		command[0], command[1] = "EVAL", v.source
		reply, err = send(command)
	}
	if deniesScripts(err) {
		return nil, fmt.Errorf("%w: the server's user may not run scripts; without them there are exclusive locks: scripts=off in a URL, or Options.Scripts: %w", driver.ErrInvalid, err)
	}
	return reply, explain(err)
}

// deniesScripts reports whether the server refused to run a script, or any.
func deniesScripts(err error) bool {
	re, is := redisconn.AsReply(err)
	return is && (re.HasCode("NOPERM") && strings.Contains(re.Text, "'eval") || re.UnknownCommand())
}

// explain makes facts of the server's errors that are facts, and leaves the others,
// which say nothing of what became of the command.
func explain(err error) error {
	re, is := redisconn.AsReply(err)
	switch {
	case !is || driver.Final(err):
		return err
	case re.HasCode("INVALID"):
		return fmt.Errorf("%w: %s", driver.ErrInvalid, strings.TrimPrefix(redisconn.WithoutScript(re.Text), "INVALID "))
	case re.HasCode("WRONGTYPE"):
		return redisconn.Invalid("this name is used for another kind of lock, or for other data", re)
	}
	return redisconn.Explain(err)
}
