package redislock

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/distlock/distlock/backend/redislock/internal/layouts"
	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
)

// storage is a way to keep holds in Redis: by scripts, by scripts that replicas acknowledge, or
// by plain commands.
type storage interface {
	// Acquire makes one attempt. A grant beside an error was taken, and is of no use: the caller gives it back.
	Acquire(ctx context.Context, r driver.Request) (driver.Grant, error)

	// Renew returns an error for each hold, or nil. They have one mode and slot. One with a floor is alone.
	Renew(ctx context.Context, holds []driver.Hold) []error

	// Release ends a hold.
	Release(ctx context.Context, h driver.Hold) error

	// Read returns what is kept under a key.
	Read(ctx context.Context, key string) (layouts.Snapshot, error)

	// Locks returns the locks among keys, which are in one slot and of one type.
	Locks(ctx context.Context, kind string, keys []string) ([]string, error)
}

// scripted keeps holds by scripts.
type scripted struct {
	client  *redisconn.Client
	pubsub  *redisconn.PubSub
	layout  *layouts.Layout
	scripts *[driver.Counted + 1]modeScripts
	notes   layouts.Notes

	// send sends a command to the server of a key. An error beside a reply says that too few replicas have it.
	send func(ctx context.Context, key string, command []string) (any, error)

	acquires atomic.Bool // a script has acquired, and none was denied since
}

func newScripted(b *Backend) *scripted {
	s := &scripted{client: b.client, pubsub: b.pubsub, layout: b.layout, scripts: stringScripts(), send: b.client.Do}
	if b.layout.Redisson {
		s.scripts = redissonScripts()
	}
	return s
}

// modeScripts are the scripts for the holds of one mode.
type modeScripts struct{ acquire, renew, release *script }

// The tables are made by the first backend that needs them, and not by each program that links this package.

var stringScripts = sync.OnceValue(func() *[driver.Counted + 1]modeScripts {
	alone := compose("fence_stream", "string_take_free", "ask", "publish", "foreign", "line", "drawn", "string_take")
	shared := compose("fence_stream", "shared_take_free", "ask", "publish", "foreign", "line", "drawn", "string_take")
	release := compose("string_release_alone", "ask", "publish", "lost", "line", "string_release")
	return &[...]modeScripts{
		driver.Exclusive: {alone, compose("fence_stream", "ask", "lost", "keep", "string_keep"), release},
		driver.Write:     {alone, compose("fence_stream", "ask", "lost", "keep", "string_keep"), release},
		driver.Read:      {shared, compose("fence_stream", "ask", "lost", "keep", "shared_keep"), release},
		driver.Counted:   {shared, compose("fence_stream", "ask", "lost", "keep", "shared_keep"), release},
	}
})

var redissonScripts = sync.OnceValue(func() *[driver.Counted + 1]modeScripts {
	return &[...]modeScripts{
		driver.Exclusive: {
			acquire: compose("fence_token", "hold", "foreign", "queue", "enqueue", "hash_take"),
			renew:   compose("fence_token", "ask", "lost", "keep", "hash_keep"),
			release: compose("ask", "lost", "publish", "queue", "dequeue", "hash_release"),
		},
		driver.Write: {
			acquire: compose("fence_token", "hold", "foreign", "write_take"),
			renew:   compose("fence_token", "ask", "lost", "keep", "hash_keep"),
			release: compose("ask", "lost", "publish", "readers", "rw_release"),
		},
		driver.Read: {
			acquire: compose("fence_token", "hold", "foreign", "publish", "read_take"),
			renew:   compose("fence_token", "ask", "lost", "keep", "read_keep"),
			release: compose("ask", "lost", "publish", "readers", "rw_release"),
		},
		driver.Counted: {
			acquire: compose("fence_token", "hold", "foreign", "publish", "permit", "permit_take"),
			renew:   compose("fence_token", "ask", "lost", "keep", "permit", "permit_keep"),
			release: compose("ask", "lost", "publish", "permit", "permit_release"),
		},
	}
})

var (
	releaseApart  = compose("ask", "lost", "string_release_apart")
	inspectString = compose("foreign", "drawn", "string_inspect")
	inspectHashes = compose("foreign", "hash_inspect")
	listStrings   = compose("foreign", "list_strings")
	listPermits   = compose("list_permits")
	listHashes    = compose("foreign", "list_hashes")
)

//go:embed scripts/*.lua
var parts embed.FS

// script is a Lua script. It is composed on first use, for the way in which messages are published: a
// program needs few of them. go test -run PrintScript -script ? prints them whole.
type script struct {
	parts   []string
	sources [redisconn.PubSubSharded + 1]func() source
}

// source is a script's text and hash.
type source struct{ text, sha string }

// compose joins parts to a script. Each comes behind those that it needs.
func compose(parts ...string) *script {
	sc := &script{parts: parts}
	for mode := redisconn.PubSubClassic; mode <= redisconn.PubSubSharded; mode++ {
		sc.sources[mode] = sync.OnceValue(func() source { return sc.composeFor(mode) })
	}
	return sc
}

func (sc *script) composeFor(mode redisconn.PubSubMode) source {
	var b strings.Builder
	for _, part := range sc.parts {
		text, err := parts.ReadFile("scripts/" + part + ".lua")
		if err != nil {
			panic(err) // a file that is not in the binary: no test passes
		}
		b.Write(text)
	}
	text := b.String()
	if mode == redisconn.PubSubSharded {
		text = strings.ReplaceAll(text, "'PUBLISH'", "'SPUBLISH'")
	}
	sum := sha1.Sum([]byte(text))
	return source{text: text, sha: hex.EncodeToString(sum[:])}
}

// run runs a script at the server that has its first key.
func (s *scripted) run(ctx context.Context, sc *script, keys, args []string) (any, error) {
	mode, err := s.pubsub.Detect(ctx, s.client)
	if err != nil {
		return nil, driver.Unsent(redisconn.Explain(err))
	}
	src := sc.sources[mode]()
	command := slices.Concat([]string{"EVALSHA", src.sha, strconv.Itoa(len(keys))}, keys, args)
	reply, err := s.send(ctx, keys[0], command)
	if err == nil || reply != nil {
		return reply, err
	}
	if re, is := redisconn.AsReply(err); is && re.HasCode("NOSCRIPT") {
		// The server is new or was restarted. It has not run anything.
		command[0], command[1] = "EVAL", src.text
		reply, err = s.send(ctx, keys[0], command)
	}
	if reply == nil && deniesScripts(err) {
		s.acquires.Store(false)
		err = redisconn.Refuse(fmt.Sprintf("the server's user may not run scripts; without them there are exclusive locks: scripts=off in a URL, or Options.Scripts: %v", err), err)
	}
	return reply, redisconn.Explain(err)
}

// deniesScripts reports whether the server refused to run a script, or any.
func deniesScripts(err error) bool {
	re, is := redisconn.AsReply(err)
	return is && (re.HasCode("NOPERM") && strings.Contains(re.Text, "'eval") || re.UnknownCommand())
}

// faultOf returns what is wrong with a key, if err is a server's answer that says so. It returns other
// errors unchanged.
func faultOf(key string, err error) error {
	re, is := redisconn.AsReply(err)
	switch {
	case is && re.HasCode("NOLOCK"):
		_, data, _ := strings.Cut(redisconn.WithoutScript(re.Text), "NOLOCK ")
		return layouts.NoLock(key, data)
	case is && re.HasCode("INVALID"):
		return fmt.Errorf("%w: %s", driver.ErrInvalid, strings.TrimPrefix(redisconn.WithoutScript(re.Text), "INVALID "))
	}
	return redisconn.OtherType(err)
}
