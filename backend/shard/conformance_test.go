package shard_test

import (
	"context"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/backend/quorum"
	"github.com/distlock/distlock/backend/shard"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
)

// Each connection has connections of its own to the members' stores.
func TestConformance(t *testing.T) {
	a, b, c := memlock.NewStore(), memlock.NewStore(), memlock.NewStore()
	drivertest.Run(t, drivertest.Harness{Open: func(context.Context) (driver.Backend, error) {
		return shard.New([]shard.Member{
			{Name: "a", Backend: a.Connect()}, {Name: "b", Backend: b.Connect()}, {Name: "c", Backend: c.Connect()},
		})
	}})
}

// Each member is a quorum of one member.
func TestConformanceWithQuorums(t *testing.T) {
	a, b, c := memlock.NewStore(), memlock.NewStore(), memlock.NewStore()
	drivertest.Run(t, drivertest.Harness{TTL: 1500 * time.Millisecond, Open: func(context.Context) (driver.Backend, error) {
		var members []shard.Member
		for i, s := range []*memlock.Store{a, b, c} {
			q, err := quorum.New([]driver.Backend{s.Connect()}, &quorum.Options{MemberTimeout: 10 * time.Second})
			if err != nil {
				return nil, err
			}
			members = append(members, shard.Member{Name: string(rune('a' + i)), Backend: q})
		}
		return shard.New(members)
	}})
}
