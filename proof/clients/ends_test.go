//go:build linux

package clients

import (
	"fmt"
	"strings"
	"time"

	"github.com/distlock/distlock/internal/testkit/expect"
)

// endPromises are those about calls and programs that end before their time.
var endPromises = []promise{
	{name: "a wait that is given up leaves nothing", keep: givenUp},
	{name: "a wait that is given up leaves nothing, though the server is silent", keep: givenUpInSilence},
	{name: "the lock of a program that was killed is free after its TTL", keep: killedProgram, without: "naive"},
	{name: "a minimum hold outlives the kill of its program", keep: func(c *cell) { minHold(c, false) }},
	{name: "a minimum hold outlives its release, and then the kill of its program", keep: func(c *cell) { minHold(c, true) }},
	{name: "a lease ends with its maximum hold, and says so", keep: maxHold},
	{name: "a program with leases ends, and they end with their TTL at the latest", keep: exits},
	{name: "a program that ends releases its leases", keep: releasesAtExit, without: "go asyncio node java naive"},
	{name: "a forked child has none of the leases, and takes others", keep: forks, without: "go asyncio node java naive"},
}

func givenUp(c *cell) {
	r := newRig(c, false)
	other := r.hold("a")
	p := c.alone(r)
	mine := p.lock("a", "ttl", 300_000, "main", 1)
	c.eventually("a waiter", func() bool { return r.waiters("a") > 0 })
	p.call("cancel", "call", mine.number)
	mine.hears("cancelled")
	c.eventually("no waiter", func() bool { return r.waiters("a") == 0 })
	expect.OK(c, other.Unlock(c.Context()))
	expect.OK(c, r.hold("a").Unlock(c.Context()))
	again, _ := p.take("a")
	again.release()
}

func givenUpInSilence(c *cell) {
	r := newRig(c, false)
	p := c.alone(r)
	first, _ := p.take("first")
	first.release()
	granted := r.seen.holdBack("acquire")
	mine := p.lock("a", "ttl", 300_000, "main", 1)
	r.awaits(granted)
	r.proxy.Silence()
	close(granted.opened)
	p.call("cancel", "call", mine.number)
	mine.hears("cancelled")
	time.Sleep(troubleTime)
	r.proxy.Pass()
	c.eventually("a free lock", func() bool { return r.isFree("a") })
}

func killedProgram(c *cell) {
	r := newRig(c, false)
	p := c.alone(r)
	_, fence := p.take("a", "ttl", 2000)
	p.program.kill()
	other, err := r.c.Mutex("a").Lock(c.Context())
	if expect.OK(c, err) && other.Fence() <= fence {
		c.Errorf("fence %d after %d", other.Fence(), fence)
	}
}

// minHold takes a lock that is kept, and later one that is not, which shows when the TTL of both is over.
func minHold(c *cell, released bool) {
	r := newRig(c, false)
	p := c.alone(r)
	kept, name, fence := p.tries("kept", "ttl", 4000, "min_hold", 300_000)
	if released {
		kept.release()
	}
	_, plain, _ := p.tries("plain", "ttl", 4000)
	p.program.kill()
	c.eventually("the end of the TTL", func() bool { return r.isFree(plain) })
	r.holds(name, fence)
}

// tries takes a lock without a wait. On a busy machine a try may have no answer, so there may be several, each with another name.
func (p *peer) tries(name string, args ...any) (mine *call, of string, fence uint64) {
	p.Helper()
	for n := range 20 {
		of = fmt.Sprint(name, n)
		mine = p.lock(of, append(args, "wait", 0)...)
		if text := mine.answer(); !strings.HasPrefix(text, "error Unavailable") {
			if _, err := fmt.Sscanf(text, "held %d", &fence); err != nil {
				p.Fatalf("%s is answered by %q", mine.text, text)
			}
			break
		}
	}
	return mine, of, fence
}

func maxHold(c *cell) {
	r := newRig(c, false)
	mine, _ := c.client(r).take("a", "ttl", 3000, "max_hold", 1000, "watch", 1)
	mine.hears("lost")
	mine.of("check").fails("Lost")
	c.eventually("a free lock", func() bool { return r.isFree("a") })
}

// exits lets a program end as programs of its language do.
func exits(c *cell) {
	r := newRig(c, false)
	p := c.alone(r)
	p.take("a", "ttl", 3000)
	p.call("exit")
	c.eventually("the end of the program", p.program.hasEnded)
	expect.OK(c, p.program.err)
	c.eventually("a free lock", func() bool { return r.isFree("a") })
}

func releasesAtExit(c *cell) {
	r := newRig(c, false)
	p := c.alone(r)
	p.take("a", "ttl", 300_000)
	p.call("exit")
	c.eventually("a free lock", func() bool { return r.isFree("a") })
}

func forks(c *cell) {
	r := newRig(c, false)
	p := c.alone(r)
	mine, fence := p.take("a", "ttl", 300_000)
	mine.of("fork", "name", "child").hears("child 0")
	mine.of("check").hears("held")
	r.holds("a", fence)
	mine.release()
}
