//go:build linux

package soak

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// leaky loses something at one of a thousand acquires.
type leaky struct {
	*memlock.Backend
	acquires atomic.Int64
	lose     func(r driver.Request)
}

func (b *leaky) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if b.acquires.Add(1)%1000 == 0 {
		b.lose(r)
	}
	return b.Backend.Acquire(ctx, r)
}

// A leak of one thing in a thousand acquires is found, whatever the thing is; and nothing is found without one.
func TestPlantedLeaks(t *testing.T) {
	b := &leaky{Backend: memlock.New(), lose: func(driver.Request) {}}
	if found := leaksOf(t, b); len(found) > 0 {
		t.Errorf("found %q without a leak", found)
	}
	b = &leaky{Backend: memlock.New()}
	b.lose = func(r driver.Request) {
		go func() { <-t.Context().Done() }()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { l.Close() })
		r.Name, r.Owner, r.TTL = fmt.Sprint("leaked ", b.acquires.Load()), driver.NewOwner(), time.Hour
		expect.OK(t, expect.Err(b.Backend.Acquire(t.Context(), r)))
	}
	if found := leaksOf(t, b); !slices.Equal(found, []string{"goroutines", "open files", "names"}) {
		t.Errorf("found %q", found)
	}
}

// leaksOf takes locks of a backend, and returns the gauges that are not flat.
func leaksOf(t *testing.T, b *leaky) (found []string) {
	client := must.Get(distlock.New(b, &distlock.Options{TTL: time.Hour}))(t)
	defer client.Close()
	gauges := append(own()[1:], count("names", 0, func() (n float64, err error) {
		err = b.List(t.Context(), "", func(string) bool { n++; return true })
		return n, err
	}))
	for range 20 {
		for range 1000 {
			lease, err := client.Mutex("x").TryLock(t.Context())
			if err == nil {
				err = lease.Unlock(t.Context())
			}
			must.OK(t, err)
		}
		for _, g := range gauges {
			g.sample()
		}
	}
	for _, g := range gauges {
		if !judge(g.values, 5).flat() {
			found = append(found, g.name)
		}
	}
	return found
}
