package faultproxy

import (
	"sync"

	"github.com/distlock/distlock/driver"
)

// Networks are the proxies of the backends that a conformance suite opens, for its Harness.
type Networks struct{ of sync.Map }

// Add records the proxies that b is connected through.
func (n *Networks) Add(b driver.Backend, proxies ...*Proxy) { n.of.Store(b, proxies) }

// Cut is Silence for a backend's proxies; restore is Pass.
func (n *Networks) Cut(b driver.Backend) (restore func()) {
	return n.each(b, func(p *Proxy) func() { p.Silence(); return p.Pass })
}

// LoseAnswers is LoseReplies for a backend's proxies.
func (n *Networks) LoseAnswers(b driver.Backend) (restore func()) {
	return n.each(b, (*Proxy).LoseReplies)
}

func (n *Networks) each(b driver.Backend, f func(*Proxy) func()) (restore func()) {
	proxies, _ := n.of.Load(b)
	return Each(proxies.([]*Proxy), f)
}

// Each calls f for each proxy, and restore what it has returned.
func Each(proxies []*Proxy, f func(*Proxy) (restore func())) (restore func()) {
	var all []func()
	for _, p := range proxies {
		all = append(all, f(p))
	}
	return func() {
		for _, restore := range all {
			restore()
		}
	}
}
