package memlock

import (
	"context"
	"fmt"
	"testing"

	"github.com/distlock/distlock/driver"
)

func BenchmarkAcquireRelease(b *testing.B) {
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Read, driver.Counted} {
		b.Run(mode.String(), func(b *testing.B) {
			m, r := New(), request("lock")
			r.Mode, r.Limit = mode, 4
			b.ReportAllocs()
			for b.Loop() {
				cycle(b, m, r)
			}
		})
	}
}

func BenchmarkAcquireReleaseParallel(b *testing.B) {
	m := New()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		r := request(driver.NewOwner())
		for pb.Next() {
			cycle(b, m, r)
		}
	})
}

// cycle calls no helper: TB.Helper takes longer than either call, and its mutex is shared.
func cycle(b *testing.B, m *Backend, r driver.Request) {
	ctx := context.Background()
	if _, err := m.Acquire(ctx, r); err != nil {
		b.Error(err)
	}
	if err := m.Release(ctx, r.Hold); err != nil {
		b.Error(err)
	}
}

func BenchmarkRefused(b *testing.B) {
	m := New()
	m.Acquire(b.Context(), request("lock"))
	r := request("lock")
	b.ReportAllocs()
	for b.Loop() {
		m.Acquire(b.Context(), r)
	}
}

func BenchmarkRenew1000(b *testing.B) {
	m := New()
	var holds []driver.Hold
	for i := range 1000 {
		r := request(fmt.Sprint(i))
		m.Acquire(b.Context(), r)
		holds = append(holds, r.Hold)
	}
	b.ReportAllocs()
	for b.Loop() {
		m.Renew(b.Context(), holds)
	}
}
