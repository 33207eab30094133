//go:build linux

package clients

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// usePromises are about what users do with locks and leases.
var usePromises = []promise{
	{name: "a lock that is used for a second block is taken again, or raises", keep: usedTwice},
	{name: "a mutex that two tasks share lets in one of them", keep: func(c *cell) { sharedByTwo(c, 1) }},
	{name: "a semaphore that two tasks share gives each its permit", keep: func(c *cell) { sharedByTwo(c, 2) }},
	{name: "a lease that was released says so, and harms no other", keep: usedAfterItsEnd},
	{name: "a lease that two tasks release is released once", keep: releasedByTwo},
	{name: "a lease that is forgotten is released", keep: forgotten, without: "go"},
	{name: "all of 100 waiters of one client get turns", keep: turnsOfMany},
	{name: "a lock that is stuck delays no wait for another", keep: stuck},
	idiom("a task of a lock", "go python node java naive"),
	idiom("a lock within a time", "go python node java naive"),
	idiom("a guard of what returns an awaitable", "go node java naive"),
	idiom("JSON.stringify of a lease", "go python asyncio java naive"),
	idiom("JSON.stringify of a holder", "go python asyncio java naive"),
}

func usedTwice(c *cell) {
	r := newRig(c, false)
	found := strings.Fields(c.client(r).call("twice", "name", "a").answer())
	if len(found) != 2 || found[0] != "locked" {
		c.Fatalf("the blocks are %q", found)
	}
	// Some languages call nothing at the beginning of a block.
	told := found[1] == "told" && (c.l.name == "node" || c.l.name == "java")
	if found[1] != "locked" && found[1] != "refused" && !told {
		c.Errorf("the second block is %s", found[1])
	}
	c.eventually("a free lock", func() bool { return r.isFree("a") })
}

func sharedByTwo(c *cell, limit int) {
	r := newRig(c, false)
	text := c.client(r).call("shared", "name", "a", "limit", limit).answer()
	var most, ran, raised, free int
	if _, err := fmt.Sscan(text, &most, &ran, &raised, &free); err != nil {
		c.Fatalf("%q", text)
	}
	if most > limit || ran < 1 || ran+raised != 2 {
		c.Errorf("of two tasks %d were in at once, %d were let in, %d were refused", most, ran, raised)
	}
	if ran == 2 && free != limit-1 {
		c.Errorf("beside the second task, which was in, %d of %d were free", free, limit)
	}
	c.eventually("a free lock", func() bool { return r.isFree("a") })
}

func usedAfterItsEnd(c *cell) {
	r := newRig(c, false)
	p := c.client(r)
	mine, _ := p.take("a", "ttl", 300_000)
	mine.release()
	other := r.hold("a")
	mine.of("check").fails("Lost")
	mine.of("extend", "ttl", 300_000).fails("Lost")
	if text := mine.of("release").answer(); text != "released" && !strings.HasPrefix(text, "error Lost") {
		c.Errorf("the second release says %s", text)
	}
	if err := other.Extend(c.Context(), time.Hour); err != nil {
		c.Errorf("the next holder: %v", err)
	}
}

func releasedByTwo(c *cell) {
	r := newRig(c, false)
	mine, _ := c.client(r).take("a", "ttl", 300_000)
	for _, release := range []*call{mine.of("release"), mine.of("release")} {
		release.hears("released")
	}
	if n := r.seen.of("a"); n.releases != 1 {
		c.Errorf("%d releases were sent", n.releases)
	}
}

func forgotten(c *cell) {
	r := newRig(c, false)
	p := c.client(r)
	mine, _ := p.take("a", "ttl", 300_000)
	mine.of("forget").hears("forgotten")
	c.eventually("a free lock", func() bool {
		p.call("collect").hears("collected")
		time.Sleep(20 * time.Millisecond)
		return r.isFree("a")
	})
}

func turnsOfMany(c *cell) {
	const waiters, each = 100, 4
	r := newRig(c, false)
	other := r.hold("a")
	turns := c.alone(r).call("turns", "name", "a", "n", waiters, "total", waiters*each)
	turns.hears("started")
	c.eventually("a waiter", func() bool { return r.waiters("a") > 0 })
	if err := other.Unlock(c.Context()); err != nil {
		c.Fatal(err)
	}
	most, none := 0, 0
	for _, text := range strings.Fields(turns.hears("turns")) {
		n, _ := strconv.Atoi(text)
		if n == 0 {
			none++
		}
		most = max(most, n)
	}
	if none > 0 || most > 3*each {
		c.Errorf("of %d turns of %d waiters, %d had none, and one had %d", waiters*each, waiters, none, most)
	}
}

func stuck(c *cell) {
	r := newRig(c, false)
	r.hold("stuck")
	other := r.hold("a")
	p := c.alone(r)
	for range 100 {
		p.lock("stuck")
	}
	for n, same := 0, 0; same < 5; time.Sleep(200 * time.Millisecond) { // as many as the client lets in
		now := r.waiters("stuck")
		if same++; now != n || n == 0 {
			n, same = now, 0
		}
	}
	mine := p.lock("a")
	c.eventually("a waiter in the queue of a", func() bool { return r.waiters("a") > 0 })
	if err := other.Unlock(c.Context()); err != nil {
		c.Fatal(err)
	}
	mine.hears("held")
}

// idiom is a promise of a language.
func idiom(name, without string) promise {
	return promise{name: name + " works, or raises", without: without, keep: func(c *cell) {
		r := newRig(c, false)
		c.client(r).call("idiom", "case", name, "name", "a").hears("right")
		c.eventually("a free lock", func() bool { return r.isFree("a") })
	}}
}
