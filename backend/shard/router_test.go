package shard_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/backend/shard"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// Each key has one instance, in all processes and with any order of the list.
func TestOwnerAgrees(t *testing.T) {
	lists := [][]string{{"web-0", "web-1", "web-2"}, {"web-2", "web-0", "web-1"}, {"web-1", "web-2", "web-0"}}
	for i := range 1000 {
		key, mine := fmt.Sprint("order:", i), 0
		for n, list := range lists {
			o := must.Get(shard.NewRouter(fmt.Sprint("web-", n), list...))(t)
			if o.Mine(key) {
				mine++
			}
		}
		must.Equal(t, mine, 1, "instances have", key)
	}
}

func TestOwnerDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := must.Get(shard.NewRouter("a", "a", "b"))(t)
		mine, other := at(t, "a", "a", "b"), at(t, "b", "a", "b")
		nothing := func(context.Context) error { return nil }
		expect.Be(t, o.Do(t.Context(), other, nothing), shard.ErrElsewhere, "a key of another instance")
		var wg sync.WaitGroup
		running := 0 // the race detector watches it
		for range 50 {
			wg.Go(func() {
				o.Do(t.Context(), mine, func(context.Context) error {
					running++
					defer func() { running-- }()
					expect.Equal(t, running, 1, "at once")
					return nil
				})
			})
		}
		wg.Wait()
		held, end := make(chan struct{}), make(chan struct{})
		wg.Go(func() {
			err := o.Do(t.Context(), mine, func(context.Context) error { close(held); <-end; return errDown })
			expect.Be(t, err, errDown, "the error of f")
		})
		<-held
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		expect.Be(t, o.Do(ctx, mine, nothing), context.Canceled, "a wait that ended")
		close(end)
		wg.Wait()
	})
}

func TestOwnerRefuses(t *testing.T) {
	for _, c := range [][]string{{""}, {"a"}, {"", "a", "a"}, {"", "a", ""}, {"c", "a", "b"}} {
		if _, err := shard.NewRouter(c[0], c[1:]...); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%q: %v", c, err)
		}
	}
	if o, err := shard.NewRouter("", "a"); err != nil || o.Mine("x") {
		t.Errorf("a router without an instance has a key: %v", err)
	}
}

// BenchmarkPair is an acquisition and a release, next to the same at a member alone: the
// difference is the cost of a shard.
func BenchmarkPair(b *testing.B) {
	pair := func(b *testing.B, backend driver.Backend) {
		names := make([]string, 1024)
		for i := range names {
			names[i] = fmt.Sprint("order:", i)
		}
		r := request("")
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			r.Name = names[i%len(names)]
			take(b, backend, r)
			must.OK(b, backend.Release(b.Context(), r.Hold))
		}
	}
	b.Run("alone", func(b *testing.B) { pair(b, memlock.New()) })
	for _, n := range []int{3, 10} {
		b.Run(fmt.Sprint(n, " members"), func(b *testing.B) {
			var members []shard.Member
			for i := range n {
				members = append(members, shard.Member{Name: fmt.Sprint("m", i), Backend: memlock.New()})
			}
			s := must.Get(shard.New(members))(b)
			defer s.Close()
			pair(b, s)
		})
	}
}
