//go:build linux

package clients

import (
	"slices"
	"strings"
	"time"

	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// faultPromises are those beside servers and networks that fail.
var faultPromises = slices.Concat(troubled(), []promise{
	{name: "an acquire whose answer is lost is repeated", keep: acquireUnanswered},
	{name: "a release whose answer is lost is repeated, and is no loss", keep: releaseUnanswered},
	{name: "a renewal whose answer is lost is repeated", keep: renewalUnanswered},
	{name: "a release of a lock that was lost says so", keep: releaseOfLost},
	{name: "a release of a lock that another has says so, and leaves it", keep: releaseOfTaken},
	{name: "a loss is told before another has the lock, also without a server", keep: lostWithoutServer},
	{name: "of two servers one may be off", keep: func(c *cell) { twoServers(c, "http://"+testserver.DeadAddr(c)) }},
	{name: "of two servers one may be silent", keep: silentServer},
	{name: "a wait for a server that is not there says so in the log", keep: waitIsTold, without: "go"},
})

// trouble is a failure that waits, leases and releases outlive.
type trouble struct {
	what       string
	begin, end func(*rig)
	tokens     bool   // it is about them
	naive      string // what a client outlives that sends each call once
}

var troubles = []trouble{
	{what: "the server is restarted", begin: (*rig).gone, end: func(r *rig) { r.serve(); r.back() }},
	{what: "the server drains, and another comes", begin: (*rig).drain, end: func(*rig) {}, naive: "a release"},
	{what: "the server is silent", begin: func(r *rig) { r.proxy.Silence() }, end: func(r *rig) { r.proxy.Pass() }},
	{what: "the token is withdrawn", begin: (*rig).deny, end: (*rig).admit, tokens: true},
	{what: "a proxy answers 503", begin: func(r *rig) { r.refuses(503) }, end: func(r *rig) { r.refuses(0) }},
	{what: "a proxy answers 429", begin: func(r *rig) { r.refuses(429) }, end: func(r *rig) { r.refuses(0) }},
}

// troubleTime is longer than a few tries without a pause take.
const troubleTime = 3 * time.Second

// troubled returns the promises beside troubles.
func troubled() (all []promise) {
	for _, what := range []struct {
		name string
		keep func(*cell, *peer, *rig, trouble)
	}{
		{"a wait goes on while ", waitsOn},
		{"a lease lives on while ", livesOn},
		{"a release is done at last, if at first ", releasesLater},
	} {
		for _, t := range troubles {
			without := ""
			if t.naive != "" && strings.HasPrefix(what.name, t.naive) {
				without = "naive"
			}
			all = append(all, promise{name: what.name + t.what, without: without, keep: func(c *cell) {
				r := newRig(c, t.tokens)
				p := c.client(r)
				first, _ := p.take("first") // so that it knows that it may
				first.release()
				what.keep(c, p, r, t)
			}})
		}
	}
	return all
}

// One wait is in the queue when the trouble begins, and one begins meanwhile.
func waitsOn(c *cell, p *peer, r *rig, t trouble) {
	other := r.hold("a")
	before := p.lock("a")
	c.eventually("a waiter", func() bool { return r.waiters("a") > 0 })
	t.begin(r)
	during := p.lock("b")
	time.Sleep(troubleTime)
	t.end(r)
	expect.OK(c, other.Unlock(c.Context()))
	for _, w := range []*call{before, during} {
		w.hears("held")
		w.release()
	}
}

func livesOn(c *cell, p *peer, r *rig, t trouble) {
	mine, fence := p.take("a", "ttl", 9000)
	t.begin(r)
	time.Sleep(troubleTime)
	t.end(r)
	n := r.seen.of("a").renewals
	c.eventually("two more renewals", func() bool { return r.seen.of("a").renewals >= n+2 })
	mine.of("check").hears("held")
	r.holds("a", fence)
	mine.release()
}

// The call may return before, with an error.
func releasesLater(c *cell, p *peer, r *rig, t trouble) {
	mine, _ := p.take("a", "ttl", 300_000)
	t.begin(r)
	release := mine.of("release")
	time.Sleep(troubleTime)
	t.end(r)
	c.eventually("a free lock", func() bool { return r.isFree("a") })
	if text := release.answer(); strings.HasPrefix(text, "error Lost") {
		c.Errorf("the release says %s", text)
	}
}

func acquireUnanswered(c *cell) {
	r := newRig(c, false)
	p := c.client(r)
	var mine *call
	r.loseAnswer("acquire", func() { mine = p.lock("a", "ttl", 300_000) })
	r.holds("a", mine.hearsNumber("held"))
	mine.release()
	c.eventually("a free lock", func() bool { return r.isFree("a") })
}

func releaseUnanswered(c *cell) {
	r := newRig(c, false)
	mine, _ := c.client(r).take("a", "ttl", 300_000)
	var release *call
	r.loseAnswer("release", func() { release = mine.of("release") })
	release.hears("released")
}

func renewalUnanswered(c *cell) {
	r := newRig(c, false)
	var mine *call
	var fence uint64
	r.loseAnswer("renew", func() { mine, fence = c.client(r).take("a", "ttl", 9000) })
	n := r.seen.of("a").renewals
	c.eventually("another renewal", func() bool { return r.seen.of("a").renewals > n })
	mine.of("check").hears("held")
	r.holds("a", fence)
	mine.release()
}

func releaseOfLost(c *cell) {
	r := newRig(c, false)
	mine, _ := c.client(r).take("a", "ttl", 300_000)
	r.lose("a")
	mine.of("release").fails("Lost")
}

func releaseOfTaken(c *cell) {
	r := newRig(c, false)
	mine, _ := c.client(r).take("a", "ttl", 300_000)
	r.lose("a")
	other := r.hold("a")
	mine.of("release").fails("Lost")
	r.holds("a", other.Fence())
}

func lostWithoutServer(c *cell) {
	r := newRig(c, false)
	mine, _ := c.client(r).take("a", "ttl", 3000, "watch", 1)
	r.gone()
	other, err := r.c.Mutex("a").Lock(c.Context())
	granted := monotonic()
	expect.OK(c, err)
	if last := mine.hearsNumber("lost"); last >= granted {
		c.Errorf("the lease was trusted for %v after another had the lock", time.Duration(last-granted))
	}
	r.back()
	mine.of("release").fails("Lost")
	r.holds("a", other.Fence())
}

func twoServers(c *cell, dead string) {
	r := newRig(c, false)
	mine, _ := c.client(r, dead).take("a")
	mine.release()
	c.eventually("a free lock", func() bool { return r.isFree("a") })
}

func silentServer(c *cell) {
	dead := newRig(c, false)
	dead.proxy.Silence()
	twoServers(c, dead.url)
}

func waitIsTold(c *cell) {
	r := newRig(c, false)
	p := c.alone(r)
	first, _ := p.take("a")
	first.release()
	r.gone()
	p.lock("a")
	c.patience = max(c.patience, 15*time.Second) // it is told after 5 s
	c.eventually("a line with the server's address", func() bool { return strings.Contains(p.program.stderr(), r.proxy.Addr()) })
}
