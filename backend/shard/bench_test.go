package shard_test

import (
	"fmt"
	"testing"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/backend/shard"
	"github.com/distlock/distlock/driver"
)

// BenchmarkPair is an acquisition and a release, next to the same at a member alone: the
// difference is what a shard costs.
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
			if err := backend.Release(b.Context(), r.Hold); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("alone", func(b *testing.B) { pair(b, memlock.New()) })
	for _, n := range []int{3, 10} {
		b.Run(fmt.Sprint(n, " members"), func(b *testing.B) {
			var members []shard.Member
			for i := range n {
				members = append(members, shard.Member{Name: fmt.Sprint("m", i), Backend: memlock.New()})
			}
			s, err := shard.New(b.Context(), members, nil)
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			pair(b, s)
		})
	}
}
