package server

import (
	"github.com/distlock/distlock/internal/nameclass"
	"github.com/prometheus/client_golang/prometheus"
)

// classes are the counters by class of name: "order:*" for order:5138. A name without a number is a class of its own, so
// they are for those who may see all locks.
type classes struct {
	registry              *prometheus.Registry
	granted, strange      *nameclass.Classes // of names, and of those that were refused, which anybody chooses
	taken, waits, expired *prometheus.CounterVec
	losses, denied        *prometheus.CounterVec
}

func newClasses() *classes {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, append([]string{"class"}, labels...))
	}
	c := &classes{
		registry: prometheus.NewRegistry(), granted: nameclass.New(nil), strange: nameclass.New(nil),
		taken:   counter("distlock_server_taken_total", "Locks that were taken through this server."),
		waits:   counter("distlock_server_waits_total", "Owners that have waited for a lock at this server."),
		expired: counter("distlock_server_expired_total", "Holds of this server that were neither renewed nor released before their TTL was over, of the 500 names used last."),
		losses:  counter("distlock_server_losses_total", "What the page calls losses: holds that were lost or broken by force, and renewals without an answer (unknown).", "cause"),
		denied:  counter("distlock_server_denied_total", "Calls for a lock that were refused since their client has not the right.", "right"),
	}
	c.registry.MustRegister(c.taken, c.waits, c.expired, c.losses, c.denied)
	return c
}

// refused counts a call that was refused.
func (c *classes) refused(name string, right Right) {
	c.denied.WithLabelValues(c.strange.Of(name), right.String()).Inc()
}
