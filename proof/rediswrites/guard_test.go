package rediswrites_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/fence"
	"github.com/distlock/distlock/fence/fenceredis"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

func TestMain(m *testing.M) { os.Exit(testserver.Run(m)) }

func goRedis(t *testing.T, addrs ...string) redis.UniversalClient {
	client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: addrs, DialTimeout: time.Minute, ReadTimeout: time.Minute, WriteTimeout: time.Minute, MaxRetries: -1})
	t.Cleanup(func() { client.Close() })
	return client
}

// eval runs a script by one of the clients.
type eval = func(ctx context.Context, script string, keys, args []string) (any, error)

func byGoRedis(client redis.UniversalClient) eval {
	return func(ctx context.Context, script string, keys, args []string) (any, error) {
		return redis.NewScript(script).Run(ctx, client, keys, args).Result()
	}
}

func byRueidis(t *testing.T, addrs ...string) eval {
	client := must.Get(rueidis.NewClient(rueidis.ClientOption{InitAddress: addrs, DisableCache: true, ConnWriteTimeout: time.Minute}))(t)
	t.Cleanup(client.Close)
	return func(ctx context.Context, script string, keys, args []string) (any, error) {
		return rueidis.NewLuaScript(script).Exec(ctx, client, keys, args).ToAny()
	}
}

// each runs a test through both clients.
func each(t *testing.T, test func(t *testing.T, run eval)) {
	addr := testserver.SharedRedis(t).Addr()
	t.Run("go-redis", func(t *testing.T) { test(t, byGoRedis(goRedis(t, addr))) })
	t.Run("rueidis", func(t *testing.T) { test(t, byRueidis(t, addr)) })
}

// eachClient runs a test through both clients, each with its own resource.
func eachClient(t *testing.T, test func(t *testing.T, g *fenceredis.Guard, resource string)) {
	each(t, func(t *testing.T, run eval) { test(t, fenceredis.New(run), fresh()) })
}

// fresh returns a name that no test has used, in this run or an earlier one.
func fresh() string { return rand.Text() }

func TestOnlyGreaterFencesAreLetIn(t *testing.T) {
	eachClient(t, func(t *testing.T, g *fenceredis.Guard, resource string) {
		var seen uint64
		for _, f := range []uint64{9, 9, 10, 9, 100, 99, 1<<53 + 1, 1 << 53, 1<<53 + 2, 1<<53 + 1, math.MaxUint64 - 1, math.MaxUint64, math.MaxUint64 - 1} {
			err := g.Enter(t.Context(), resource, f)
			var stale *fence.StaleError
			switch {
			case f >= seen && err != nil:
				t.Errorf("%d after %d: %v", f, seen, err)
			case f < seen && !errors.As(err, &stale):
				t.Errorf("%d after %d: %v", f, seen, err)
			case f < seen && *stale != (fence.StaleError{Resource: resource, Fence: f, Seen: seen}):
				t.Errorf("%d after %d: %+v", f, seen, stale)
			}
			seen = max(seen, f)
		}
	})
}

func TestRunAnswers(t *testing.T) {
	eachClient(t, func(t *testing.T, g *fenceredis.Guard, resource string) {
		for _, c := range []struct {
			script string
			want   any
		}{
			{"return redis.call('SET', KEYS[1], ARGV[1]) and 7", int64(7)},
			{"return redis.call('GET', KEYS[1])", "41"},
			{"return redis.call('GET', KEYS[2])", nil},
			{"return {KEYS[1], ARGV[2], #KEYS, #ARGV}", []any{resource, "b", int64(2), int64(2)}},
			{"return -- nothing", nil},
			{"-- a % sign, and a %1 to be replaced", nil},
			{"", nil},
		} {
			got, err := g.Run(t.Context(), resource, 33, c.script, []string{resource, resource + "-2"}, []string{"41", "b"})
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("%s: %#v, %v; want %#v", c.script, got, err, c.want)
			}
		}
		for _, script := range []string{"return redis.error_reply('NO way')", "return redis.call('NO', 'way')", "no lua", "return redis.pcall('NO')"} {
			if got, err := g.Run(t.Context(), resource, 33, script, nil, nil); err == nil {
				t.Errorf("%s: %v", script, got)
			}
		}
	})
}

// A refused script does nothing.
func TestStaleScriptDoesNotRun(t *testing.T) {
	eachClient(t, func(t *testing.T, g *fenceredis.Guard, resource string) {
		set := func(f uint64, value string) error {
			_, err := g.Run(t.Context(), resource, f, "redis.call('SET', KEYS[1], ARGV[1])", []string{resource}, []string{value})
			return err
		}
		must.OK(t, set(34, "90"))
		must.Be(t, set(33, "99"), fence.ErrStale)
		if got, err := g.Run(t.Context(), resource, 34, "return redis.call('GET', KEYS[1])", []string{resource}, nil); got != "90" {
			t.Errorf("%v, %v", got, err)
		}
	})
}

func TestBadInput(t *testing.T) {
	eachClient(t, func(t *testing.T, g *fenceredis.Guard, resource string) {
		ctx := t.Context()
		key := must.Get(fenceredis.Key(resource))(t)
		odd := resource + "odd"
		oddKey, _ := fenceredis.Key(odd)
		client := goRedis(t, testserver.SharedRedis(t).Addr())
		must.OK(t, errors.Join(client.LPush(ctx, key, 1).Err(), client.Set(ctx, oddKey, "-3", 0).Err()))
		if err := g.Enter(ctx, resource, 33); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") || !strings.Contains(err.Error(), key) {
			t.Errorf("a list: %v", err)
		}
		for name, err := range map[string]error{
			"fence 0":   g.Enter(ctx, "a", 0),
			"no name":   g.Enter(ctx, "", 33),
			"brace":     g.Enter(ctx, "a}b", 33),
			"no number": g.Enter(ctx, odd, 33),
			"no eval":   fenceredis.New(nil).Enter(ctx, "a", 33),
			"answer": fenceredis.New(func(context.Context, string, []string, []string) (any, error) {
				return "OK", nil
			}).Enter(ctx, "a", 33),
		} {
			expect.Be(t, err, fence.ErrInvalid, name)
		}
		ended, cancel := context.WithCancel(ctx)
		cancel()
		expect.Be(t, g.Enter(ended, "a", 33), context.Canceled, "a context that has ended")
	})
}

func TestKey(t *testing.T) {
	keys := map[string]string{
		"stock:7":     "distlock_guard:{stock:7}",
		"{stock}:7":   "{stock}:7:distlock_guard",
		"{a}":         "{a}:distlock_guard",
		"a":           "distlock_guard:{a}",
		"x{a}{b}":     "x{a}{b}:distlock_guard",
		"x{a}}":       "x{a}}:distlock_guard",
		"with spaces": "distlock_guard:{with spaces}",
	}
	for resource, want := range keys {
		if got, err := fenceredis.Key(resource); got != want || err != nil {
			t.Errorf("%q: %q, %v", resource, got, err)
		}
	}
	for _, resource := range []string{"", "{}", "{}a{b}", "a{b", "a}b", "}", "{", "\x00", "\xff"} {
		if got, err := fenceredis.Key(resource); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%q: %q, %v", resource, got, err)
		}
	}
}

// Data and guard are in one slot for every resource name, and both clients find it.
func TestCluster(t *testing.T) {
	group := testserver.SharedRedisCluster(t)
	addrs := group.Addrs()
	client := goRedis(t, addrs...)
	for i, run := range []eval{byGoRedis(client), byRueidis(t, addrs...)} {
		g := fenceredis.New(run)
		for _, resource := range []string{"stock:7", "stock:8", "{stock:9}", "x{a}{b}", "ä"} {
			resource = fmt.Sprint(i, resource)
			keys := []string{resource}
			if strings.Contains(resource, "{") {
				keys = append(keys, resource+":reserved")
			}
			got, err := g.Run(t.Context(), resource, 33, "return #KEYS", keys, nil)
			if err != nil || got != int64(len(keys)) {
				t.Errorf("%q: %v, %v", resource, got, err)
			}
			key, _ := fenceredis.Key(resource)
			slots := []int64{client.ClusterKeySlot(t.Context(), key).Val(), client.ClusterKeySlot(t.Context(), resource).Val()}
			if len(slices.Compact(slots)) > 1 {
				t.Errorf("%q: slots %v", resource, slots)
			}
		}
	}
}
