package redislock

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
)

// fuzzMutant is a mistake that others have made, or that is easily made. Either the
// scripts are changed or the backend is wrapped.
type fuzzMutant struct {
	kind  fuzzCase
	edits []edit
	wrap  func(*Backend) fuzzed
}

// edit replaces a piece of a mode's scripts.
type edit struct {
	mode     driver.Mode
	old, new string
}

var (
	stringMutex   = fuzzCase{layout: String, modes: []driver.Mode{driver.Exclusive}}
	redissonMutex = fuzzCase{layout: Redisson, modes: []driver.Mode{driver.Exclusive}}
	readWrite     = fuzzCase{layout: String, modes: []driver.Mode{driver.Write, driver.Read}}
	fairMutex     = fuzzCase{layout: String, modes: []driver.Mode{driver.Exclusive}, fair: true}
	semaphore     = fuzzCase{layout: String, modes: []driver.Mode{driver.Counted}}
)

var fuzzMutants = map[string]fuzzMutant{
	"a hold that is asked for again counts twice": {kind: redissonMutex, edits: []edit{
		{driver.Exclusive, "call('HSET', KEYS[1], ARGV[1], 1)", "call('HINCRBY', KEYS[1], ARGV[1], 1)"},
		{driver.Exclusive, "redis.call('DEL', KEYS[1], KEYS[2])", "if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) > 0 then return 1 end redis.call('DEL', KEYS[1], KEYS[2])"},
	}},
	"a permit that is asked for again counts twice": {kind: semaphore, edits: []edit{
		{driver.Counted, "if not again then", "if true then"},
	}},
	"an owner is kept out by its own hold": {kind: stringMutex, edits: []edit{
		{driver.Exclusive, "string.sub(value, 1, 37) == string.sub(ARGV[1], 1, 37)", "false"},
	}},
	"a hold that is asked for again keeps its fence": {kind: stringMutex, edits: []edit{
		{driver.Exclusive, "local id = fence(KEYS[#KEYS])\n", "local id = first ~= '' and string.sub(first, 2) or fence(KEYS[#KEYS])\n"},
	}},
	"anybody's release frees the lock": {kind: stringMutex, edits: []edit{
		{driver.Exclusive, "(string.sub(value, 1, 37) == ARGV[1] .. ' ' or value == ARGV[1])", "true"},
	}},
	"a downgrade keeps the write lock": {kind: readWrite, edits: []edit{
		{driver.Read, "call('HDEL', KEYS[1], writer)", ""},
	}},
	"the first reader to leave takes the others along": {kind: readWrite, edits: []edit{
		{driver.Write, "if call('HLEN', KEYS[1]) > 1 then", "if false then"},
		{driver.Read, "if call('HLEN', KEYS[1]) > 1 then", "if false then"},
	}},
	"what an ended hold wrote for Inspect stays": {kind: readWrite, edits: []edit{
		{driver.Write, "call('DEL', KEYS[2])", ""},
		{driver.Read, "call('DEL', KEYS[2])", ""},
	}},
	"an attempt passes the first place": {kind: fairMutex, edits: []edit{
		{driver.Exclusive, "left == -2 and (not first or first == who)", "left == -2"},
	}},
	"who asks again goes to the end of the line": {kind: fairMutex, edits: []edit{
		{driver.Exclusive, "if not ends and not (scores and redis.call('ZSCORE', scores, who)) then\n    redis.call('RPUSH'", "redis.call('LREM', line, 0, who)\n  if true then\n    redis.call('RPUSH'"},
	}},
	"who gives up keeps its place in line": {kind: fairMutex, edits: []edit{
		{driver.Exclusive, "if not leave(who) then\n    return 0", "if true then\n    return redis.call('ZSCORE', places, who) and 1 or 0"},
	}},
	"a release is repeated in secret":  {kind: stringMutex, wrap: func(b *Backend) fuzzed { return repeater{b} }},
	"no answer to a renewal is a loss": {kind: stringMutex, wrap: func(b *Backend) fuzzed { return pessimist{b} }},
	"no answer to an acquire is a no":  {kind: stringMutex, wrap: func(b *Backend) fuzzed { return denier{b} }},
}

type repeater struct{ *Backend }

func (b repeater) Release(ctx context.Context, h driver.Hold) error {
	err := b.Backend.Release(ctx, h)
	if answerOf(err) == unclear {
		err = b.Backend.Release(ctx, h)
	}
	return err
}

type pessimist struct{ *Backend }

func (b pessimist) Renew(ctx context.Context, holds []driver.Hold) []error {
	errs := b.Backend.Renew(ctx, holds)
	for i, err := range errs {
		if answerOf(err) == unclear {
			errs[i] = driver.ErrLost
		}
	}
	return errs
}

type denier struct{ *Backend }

func (b denier) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := b.Backend.Acquire(ctx, r)
	if answerOf(err) == unclear {
		err = &driver.HeldError{}
	}
	return g, err
}

// changed is a script with another piece in place of one that it must have once.
func changed(t *testing.T, s *script, e edit) *script {
	t.Helper()
	source := strings.Replace(s.in(redisconn.PubSubClassic).source, e.old, e.new, 1)
	sum := sha1.Sum([]byte(source))
	return &script{redisconn.PubSubClassic: version{source: source, sha: hex.EncodeToString(sum[:])}}
}

func (m fuzzMutant) apply(t *testing.T, b *Backend) fuzzed {
	for _, e := range m.edits {
		r := b.layout.recipes[e.mode]
		take, drop := changed(t, r.acquire, e), changed(t, r.release, e)
		if take.in(redisconn.PubSubClassic) == r.acquire.in(redisconn.PubSubClassic) && drop.in(redisconn.PubSubClassic) == r.release.in(redisconn.PubSubClassic) {
			t.Errorf("no script of %v has %q", e.mode, e.old)
		}
		r.acquire, r.release = take, drop
	}
	if m.wrap != nil {
		return m.wrap(b)
	}
	return b
}

// The test with lost replies catches what it is for.
func TestLostRepliesCatchMistakes(t *testing.T) {
	for name, m := range fuzzMutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := startFuzz(t, m.kind, 1, 4000, func(b *Backend) fuzzed { return m.apply(t, b) })
			if err == nil {
				t.Fatal("not caught")
			}
			t.Log(err)
		})
	}
}
