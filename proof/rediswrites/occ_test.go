package rediswrites_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/occ"
	"github.com/distlock/distlock/occ/occredis"
	"github.com/redis/go-redis/v9"
)

// eachValue runs a test through both clients, each with its own key.
func eachValue(t *testing.T, test func(t *testing.T, v *occredis.Values, c redis.UniversalClient, key string)) {
	plain := goRedis(t, testserver.SharedRedis(t).Addr())
	each(t, func(t *testing.T, run eval) { test(t, occredis.New(run), plain, fresh()) })
}

func one(v occredis.Value) (string, error) {
	n := 0
	if v.Exists {
		var err error
		if n, err = strconv.Atoi(v.Text); err != nil {
			return "", err
		}
	}
	return strconv.Itoa(n + 1), nil
}

// Sixteen goroutines increment one counter without losing an increment. The counter does not exist at
// first.
func TestNothingIsLost(t *testing.T) {
	eachValue(t, func(t *testing.T, v *occredis.Values, c redis.UniversalClient, key string) {
		var conflicts atomic.Int64
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				for range 20 {
					_, err := v.Update(t.Context(), key, one, occ.Attempts(10_000), occ.OnConflict(func(int) { conflicts.Add(1) }))
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		t.Logf("320 updates by 16, %d retries", conflicts.Load())
		expect.Equal(t, c.Get(t.Context(), key).Val(), "320", "updates were counted")
	})
}

// Another client writes once between read and write; or creates the key, or deletes it.
func TestOneConflict(t *testing.T) {
	eachValue(t, func(t *testing.T, v *occredis.Values, c redis.UniversalClient, key string) {
		for _, other := range []func(){
			func() { c.Set(t.Context(), key, "7", 0) }, // it is not there at first
			func() { c.Set(t.Context(), key, "70", 0) },
			func() { c.Del(t.Context(), key) },
			func() { c.Set(t.Context(), key, "", 0) },
		} {
			calls := 0
			got, err := v.Update(t.Context(), key, func(old occredis.Value) (string, error) {
				if calls++; calls == 1 {
					other()
				}
				return old.Text + "!", nil
			})
			if err != nil || calls != 2 || got != c.Get(t.Context(), key).Val() {
				t.Errorf("%q, %v after %d calls", got, err, calls)
			}
		}
	})
}

// Any bytes are valid values, and the TTL is kept.
func TestValues(t *testing.T) {
	eachValue(t, func(t *testing.T, v *occredis.Values, c redis.UniversalClient, key string) {
		text := "\x00\xff\r\n{}$1 ä"
		c.Set(t.Context(), key, text, time.Hour)
		got, err := v.Update(t.Context(), key, func(old occredis.Value) (string, error) { return old.Text + old.Text, nil })
		if err != nil || got != text+text || c.Get(t.Context(), key).Val() != got {
			t.Errorf("%q, %v", got, err)
		}
		if ttl := c.TTL(t.Context(), key).Val(); ttl < 50*time.Minute {
			t.Errorf("time to live: %v", ttl)
		}
	})
}

func TestErrors(t *testing.T) {
	eachValue(t, func(t *testing.T, v *occredis.Values, c redis.UniversalClient, key string) {
		wrong := errors.New("wrong")
		if _, err := v.Update(t.Context(), key, func(occredis.Value) (string, error) { return "x", wrong }); err != wrong {
			t.Errorf("an error of change: %v", err)
		}
		expect.Equal(t, c.Exists(t.Context(), key).Val(), 0, "something was stored")
		c.LPush(t.Context(), key, "a")
		if _, err := v.Update(t.Context(), key, one); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") || !strings.Contains(err.Error(), key) {
			t.Errorf("a list: %v", err)
		}
	})
	odd := occredis.New(func(context.Context, string, []string, []string) (any, error) { return "OK", nil })
	if _, err := odd.Update(t.Context(), "k", one); err == nil || !strings.Contains(err.Error(), "[]any") {
		t.Errorf("an Eval with another result type: %v", err)
	}
}

// Bytes are not misread where other clients return strings.
func TestAnswersThatAreNoStrings(t *testing.T) {
	v := occredis.New(func(context.Context, string, []string, []string) (any, error) { return []any{[]byte("41")}, nil })
	_, err := v.Update(t.Context(), "n", func(old occredis.Value) (string, error) {
		t.Errorf("change was given %q", old.Text)
		return old.Text, nil
	})
	if err == nil || !strings.Contains(err.Error(), "[]uint8") {
		t.Error(err)
	}
}
