// Package occredis is package occ for values in Redis, Valkey and compatible servers. A script compares
// and sets: unlike WATCH and MULTI it needs no connection of its own.
//
// It contains no Redis client: it takes a function that runs a script, as fenceredis does. With
// go-redis:
//
//	values := occredis.New(func(ctx context.Context, script string, keys, args []string) (any, error) {
//		return redis.NewScript(script).Run(ctx, client, keys, args).Result()
//	})
//
// With rueidis: rueidis.NewLuaScript(script).Exec(ctx, client, keys, args).ToAny().
//
// It compares the value itself. So there is no version to maintain, and changes by any other writer
// are detected, except a value that changed and changed back. The client must not resend a script whose
// answer was lost, or a change may be made twice (go-redis: MaxRetries: -1, and no ClusterClient, which
// ignores that).
package occredis

import (
	"context"
	"fmt"

	"github.com/distlock/distlock/fence/fenceredis"
	"github.com/distlock/distlock/occ"
)

// Eval runs a script. It is the same as fenceredis's.
type Eval = fenceredis.Eval

// Values are the string values of a Redis server. They are safe for concurrent use if their Eval
// is.
type Values struct{ eval Eval }

// New returns Values whose scripts eval runs.
func New(eval Eval) *Values { return &Values{eval} }

// Value is the value of a key. If the key does not exist it is the zero Value.
type Value struct {
	Text   string // any bytes
	Exists bool
}

// Results are in tables, since clients return an error for a nil that stands alone.
const (
	loadScript = `
local v = redis.call('GET', KEYS[1])
if v then return {v} end
return {}`

	// ARGV: 1 if the key existed, its old value, and the new one. KEEPTTL needs Redis 6.0.
	storeScript = `
local v = redis.call('GET', KEYS[1])
if v == false and ARGV[1] == '0' or v and ARGV[1] == '1' and v == ARGV[2] then
  redis.call('SET', KEYS[1], ARGV[3], 'KEEPTTL')
  return {'stored'}
end
return {}`
)

// Update changes the value of key, and returns the new one. It creates a key that does not exist,
// and keeps the TTL of an existing one. It returns the errors of occ.Update: change may run several
// times, and an error of change ends Update with nothing stored. It needs Redis 6.0.
func (v *Values) Update(ctx context.Context, key string, change func(Value) (string, error), opts ...occ.Option) (string, error) {
	load := func(ctx context.Context) (old Value, err error) {
		texts, err := v.run(ctx, loadScript, key)
		if err != nil || len(texts) == 0 {
			return old, err
		}
		if old.Text, old.Exists = texts[0].(string); !old.Exists {
			err = fmt.Errorf("occredis: %q: Eval returned a %T in the table: want a string", key, texts[0])
		}
		return old, err
	}
	compute := func(_ context.Context, old Value) (new Value, err error) {
		new.Text, err = change(old)
		return new, err
	}
	store := func(ctx context.Context, old, new Value) (bool, error) {
		exists := "0"
		if old.Exists {
			exists = "1"
		}
		answer, err := v.run(ctx, storeScript, key, exists, old.Text, new.Text)
		return len(answer) > 0, err
	}
	value, err := occ.Update(ctx, load, compute, store, opts...)
	return value.Text, err
}

func (v *Values) run(ctx context.Context, script, key string, args ...string) ([]any, error) {
	answer, err := v.eval(ctx, script, []string{key}, args)
	if err != nil {
		return nil, fmt.Errorf("occredis: %q: %w", key, err)
	}
	list, ok := answer.([]any)
	if !ok {
		return nil, fmt.Errorf("occredis: %q: Eval returned a %T: want a []any", key, answer)
	}
	return list, nil
}
