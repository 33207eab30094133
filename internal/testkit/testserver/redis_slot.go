package testserver

import (
	"fmt"
	"net"
	"strconv"
)

// SlotMove is a slot on its way from one master to another. Meanwhile the old one
// answers ASK for keys that it doesn't have, and TRYAGAIN to commands on several keys
// of which it has but some.
type SlotMove struct {
	c        *RedisClusterGroup
	slot     int
	from, to *RedisServer
}

// MoveSlot moves a slot with all its keys to another master.
func (g *RedisClusterGroup) MoveSlot(slot int, to *RedisServer) {
	g.tb.Helper()
	g.StartMove(slot, to).Finish()
}

// StartMove begins to move a slot to another master; no key has moved when it returns.
func (g *RedisClusterGroup) StartMove(slot int, to *RedisServer) *SlotMove {
	g.tb.Helper()
	m := &SlotMove{c: g, slot: slot, from: g.Owner(slot), to: to}
	g.must(to, m.set("IMPORTING", g.id(m.from))...)
	g.must(m.from, m.set("MIGRATING", g.id(to))...)
	return m
}

func (m *SlotMove) set(args ...string) []string {
	return append([]string{"CLUSTER", "SETSLOT", strconv.Itoa(m.slot)}, args...)
}

// Keys moves these keys of the slot, which must exist.
func (m *SlotMove) Keys(keys ...string) {
	m.c.tb.Helper()
	host, port, err := net.SplitHostPort(m.to.Addr())
	if err != nil {
		m.c.tb.Fatalf("testserver: %v", err)
	}
	args := []string{"MIGRATE", host, port, "", "0", strconv.FormatInt(startTimeout.Milliseconds(), 10)}
	switch {
	case m.to.user != "":
		args = append(args, "AUTH2", m.to.user, m.to.password)
	case m.to.password != "":
		args = append(args, "AUTH", m.to.password)
	}
	args = append(args, "KEYS")
	if reply := m.c.must(m.from, append(args, keys...)...); reply != "OK" {
		m.c.tb.Fatalf("testserver: migrating %q: %v", keys, reply)
	}
}

// Finish moves the keys that are left, and returns when all nodes know where the slot
// is now.
func (m *SlotMove) Finish() {
	m.c.tb.Helper()
	for {
		left, _ := m.c.must(m.from, "CLUSTER", "GETKEYSINSLOT", strconv.Itoa(m.slot), "100").([]any)
		if len(left) == 0 {
			break
		}
		keys := make([]string, len(left))
		for i, key := range left {
			keys[i] = fmt.Sprint(key)
		}
		m.Keys(keys...)
	}
	m.give()
}

// Cancel ends the move where no key has moved; the slot stays where it was.
func (m *SlotMove) Cancel() {
	m.c.tb.Helper()
	m.c.must(m.from, m.set("STABLE")...)
	m.c.must(m.to, m.set("STABLE")...)
}

// give tells all masters who owns the slot, the new owner first; replicas learn it
// from theirs.
func (m *SlotMove) give() {
	m.c.tb.Helper()
	id := m.c.id(m.to)
	masters := append([]*RedisServer{m.to, m.from}, m.c.Masters()...)
	for _, s := range masters {
		m.c.must(s, m.set("NODE", id)...)
	}
	m.c.await("a slot doesn't move", func() error {
		return m.c.all(func(v view) error {
			if v.owner(m.slot) != id {
				return errNotYet
			}
			return nil
		})
	})
}
