package engine

import (
	"context"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/locktest"
)

func TestConformance(t *testing.T) {
	s := newStore()
	drivertest.Run(t, drivertest.Harness{Open: func(context.Context) (driver.Backend, error) { return s.open(), nil }})
}

// Waiters poll where the store can't wake them.
func TestConformanceWithoutListening(t *testing.T) {
	s := newStore()
	drivertest.Run(t, drivertest.Harness{Open: func(context.Context) (driver.Backend, error) {
		c := s.connect()
		c.silent = true
		return New(c, Options{Package: "engine", Name: "silent"}), nil
	}})
}

// The store's clock is this process's.
func TestConformanceWithOneClock(t *testing.T) {
	s := newStore()
	drivertest.Run(t, drivertest.Harness{Open: func(context.Context) (driver.Backend, error) {
		return New(s.connect(), Options{Package: "engine", Name: "one clock", Clock: s.clock}), nil
	}})
}

// Edits answer as package claims does.
func TestSameAsClaims(t *testing.T) {
	s := newStore()
	b := s.open()
	defer b.Close()
	locktest.SameAsClaims(t, b, 1000, s.end)
}

// end lets an owner's claim end.
func (s *store) end(name, owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kept[name]
	l, err := see(Seen{Version: k.Version, Text: k.Text})
	if err != nil {
		panic(err)
	}
	for i := range l.Claims {
		if c := &l.Claims[i]; c.Owner == owner {
			c.Until = 1000
		}
	}
	k.Version++
	k.Text, k.Until = l.text()
	s.kept[name] = k
}
