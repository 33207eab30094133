package drivertest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/distlock/distlock/driver"
)

// Checks lists all promises, subject by subject.
func Checks() []Check {
	var all []Check
	for _, subject := range [][]promise{
		capsChecks, exclusionChecks, againChecks, ttlChecks, renewChecks, releaseChecks,
		fenceChecks, sharedChecks, countedChecks, kindChecks, queueChecks, watchChecks,
		revokeChecks, fixedChecks, nameChecks, inspectChecks, factChecks, ctxChecks, closeChecks, detachedChecks, cutChecks, refusedChecks,
	} {
		for _, p := range subject {
			all = append(all, Check{Name: p.name, Promise: p.text, Run: p.check})
		}
	}
	return all
}

// RunRefused runs the checks that need Harness.Withdraw, at the same time. make makes a harness for each,
// whose user no other check has.
func RunRefused(t *testing.T, make func(t *testing.T) Harness) {
	for _, p := range refusedChecks {
		t.Run(p.name, func(t *testing.T) {
			h := make(t)
			h.extra = busy
			answer := start(func() error { return p.check(context.Background(), &h) })
			t.Parallel()
			h.report(t, p.name, p.text, <-answer)
		})
	}
}

// start begins a check before t.Parallel, which would run only as many at once as there are processors.
func start(check func() error) (answer chan error) {
	answer = make(chan error, 1)
	go func() { answer <- check() }()
	return answer
}

func (h *Harness) report(t *testing.T, name, promise string, err error) {
	switch {
	case errors.Is(err, ErrNotClaimed):
		t.Log(err)
	case err != nil && slices.Contains(h.Except, name):
		t.Skipf("known to be broken: %s\n%v", promise, err)
	case err != nil:
		t.Errorf("broken: %s\n%v", promise, err)
	}
}

// Run runs every check as a parallel subtest. Checks that wait for an expiry do so at
// the same time, so the whole suite takes seconds.
func Run(t *testing.T, h Harness) {
	slots := make(chan struct{}, cmp.Or(h.Parallel, 8))
	h.extra = busy
	h.caps = sync.OnceValues(func() (driver.Caps, error) { return h.readCaps(context.Background()) }) // it costs a connection
	for _, c := range Checks() {
		t.Run(c.Name, func(t *testing.T) {
			answer := start(func() error {
				slots <- struct{}{}
				defer func() { <-slots }()
				return c.Run(context.Background(), &h)
			})
			t.Parallel()
			h.report(t, c.Name, c.Promise, <-answer)
		})
	}
}
