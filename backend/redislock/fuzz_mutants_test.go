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

var fuzzMutants = map[string]fuzzMutant{
	"a hold that is asked for again counts twice": {kind: redissonMutex, edits: []edit{
		{driver.Exclusive, "call('HSET', KEYS[1], ARGV[1], 1)", "call('HINCRBY', KEYS[1], ARGV[1], 1)"},
		{driver.Exclusive, "redis.call('DEL', KEYS[1], KEYS[2])", "if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) > 0 then return 1 end redis.call('DEL', KEYS[1], KEYS[2])"},
	}},
	"a permit that is asked for again counts twice": {kind: javaSemaphore, edits: []edit{
		{driver.Counted, "if call('ZADD', KEYS[3], last, ARGV[1]) == 1 then", "if call('ZADD', KEYS[3], last, ARGV[1]) then"},
	}},
	"an owner is kept out by its own permit": {kind: semaphore, edits: []edit{
		{driver.Counted, "local id = seen and regrant(seen)", "local id"},
		{driver.Counted, "local id = value and regrant(value, left)", "local id"},
	}},
	"one permit too many": {kind: semaphore, edits: []edit{
		{driver.Counted, "if not seen or count() < (limit", "if not seen or count() <= (limit"},
	}},
	"an owner is kept out by its own hold": {kind: stringMutex, edits: []edit{
		{driver.Exclusive, "local id = value and regrant(value, left)", "local id"},
	}},
	"a hold that is asked for again keeps its fence": {kind: stringMutex, edits: []edit{
		{driver.Exclusive, "local id = fence(KEYS[#KEYS])\n", "local id = first and string.sub(first, 2) or fence(KEYS[#KEYS])\n"},
	}},
	"anybody's release frees the lock": {kind: stringMutex, edits: []edit{
		{driver.Exclusive, "(string.sub(value, 1, 37) == ARGV[1] .. ' ' or value == ARGV[1])", "true"},
	}},
	"a downgrade keeps the write lock": {kind: javaReadWrite, edits: []edit{
		{driver.Read, "call('HDEL', KEYS[1], writer)", ""},
	}},
	"a writer can't become a reader": {kind: readWrite, edits: []edit{
		{driver.Read, "if kind == 'r' and string.sub(value, 1, 37)", "if false and string.sub(value, 1, 37)"},
	}},
	"the first of Java's readers to leave takes the others along": {kind: javaReadWrite, edits: []edit{
		{driver.Write, "if others then", "if false then"},
		{driver.Read, "if others then", "if false then"},
	}},
	"the first reader to leave takes the others along": {kind: readWrite, edits: []edit{
		{driver.Write, "if others == 0 then", "if true then"},
		{driver.Read, "if others == 0 then", "if true then"},
	}},
	"the last reader leaves the lock behind": {kind: readWrite, edits: []edit{
		{driver.Write, "redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])", ""},
		{driver.Read, "redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])", ""},
	}},
	"what an ended hold wrote for Inspect stays": {kind: javaReadWrite, edits: []edit{
		{driver.Write, "call('DEL', KEYS[1], KEYS[2], KEYS[3])", "call('DEL', KEYS[1], KEYS[3])"},
		{driver.Read, "call('DEL', KEYS[1], KEYS[2], KEYS[3])", "call('DEL', KEYS[1], KEYS[3])"},
	}},
	"an attempt passes the first place": {kind: fairMutex, edits: []edit{
		{driver.Exclusive, "if admits(place, held, room, first) then", "if not held then"},
	}},
	"who asks again goes to the end of the queue": {kind: fairMutex, edits: []edit{
		{driver.Exclusive, "if ends then\n    return\n  end", "redis.call('LREM', queue, 0, who)"},
	}},
	"who gives up keeps its place in the queue": {kind: fairMutex, edits: []edit{
		{driver.Exclusive, "      leave(who)\n      wake", "      wake"},
	}},
	"a reader passes a writer that waits": {kind: fairReadWrite, edits: []edit{
		{driver.Read, "(not seen or seen == marker) and redis.call('EXISTS', queue) == 0", "not seen or seen == marker"},
	}},
	"an owner has two places": {kind: fairReadWrite, edits: []edit{
		{driver.Read, "first = switch(place, first)", ""}, {driver.Write, "first = switch(place, first)", ""},
	}},
	"permits pass a waiter of another kind": {kind: mixedKinds, edits: []edit{
		{driver.Counted, "elseif kindOf(first) ~= kind or room < 2 then\n    return false\n  end", "elseif room > 1 then\n    return true\n  end"},
	}},
	"a reader that gives up keeps its place": {kind: mixedKinds, edits: []edit{
		{driver.Read, "      leave(who)\n      wake", "      wake"},
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
func changed(sc *script, e edit) (_ *script, is bool) {
	text := sc.sources[redisconn.PubSubClassic]().text
	mutant := strings.Replace(text, e.old, e.new, 1)
	sum := sha1.Sum([]byte(mutant))
	var changed script
	changed.sources[redisconn.PubSubClassic] = func() source { return source{mutant, hex.EncodeToString(sum[:])} }
	return &changed, mutant != text
}

func (m fuzzMutant) apply(t *testing.T, b *Backend) fuzzed {
	if s := scriptsOf(b); s != nil {
		own := *s.scripts
		s.scripts = &own
		for _, e := range m.edits {
			of := &own[e.mode]
			take, takes := changed(of.acquire, e)
			drop, drops := changed(of.release, e)
			if !takes && !drops {
				t.Errorf("no script of %v has %q", e.mode, e.old)
			}
			of.acquire, of.release = take, drop
		}
	}
	if m.wrap != nil {
		return m.wrap(b)
	}
	return b
}

// The test with lost replies catches mutants. The faintest one shows itself once in 1,100 calls.
func TestLostRepliesCatchMistakes(t *testing.T) {
	for name, m := range fuzzMutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := startFuzz(t, m.kind, 1, 40_000, func(b *Backend) fuzzed { return m.apply(t, b) })
			if err == nil {
				t.Fatal("not caught")
			}
			t.Log(err)
		})
	}
}
