package main

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/examples/internal/exampletest"
	"github.com/distlock/distlock/examples/internal/story"
	"github.com/distlock/distlock/examples/internal/storytest"
	"github.com/distlock/distlock/internal/testkit/must"
)

func TestALeaderStepsDownBeforeTheNextLeads(t *testing.T) {
	storytest.Run(t, func(t *testing.T, s *story.Story) {
		terms, err := simulate(t.Context(), s)
		if err != nil || len(terms) != 3 {
			t.Fatalf("%d terms, %v", len(terms), err)
		}
		for i, next := range terms[1:] {
			last := terms[i]
			if next.early {
				t.Errorf("term %d began before term %d had ended", next.number, last.number)
			}
			if next.lease.Fence() <= last.lease.Fence() {
				t.Errorf("term %d has fence %d, after %d", next.number, next.lease.Fence(), last.lease.Fence())
			}
			if next.host == last.host {
				t.Errorf("%s leads term %d again", next.host.Name, next.number)
			}
		}
		if !errors.Is(terms[0].cause, distlock.ErrLost) {
			t.Errorf("the first term ended by %v; its lock should have been lost", terms[0].cause)
		}
	})
}

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// A leader that is asked to stop says so before the next one leads, under a greater fence.
func TestTheNextLeads(t *testing.T) {
	exampletest.OnStores(t, func(t *testing.T, url string) {
		first := exampletest.Start(t, "DISTLOCK_URL="+url)
		fence := leads(t, first)
		second := exampletest.Start(t, "DISTLOCK_URL="+url)
		first.Stop(t)
		if next := leads(t, second); next <= fence {
			t.Errorf("fence %d after %d", next, fence)
		}
		second.Stop(t)
	})
}

// leads returns the fence under which a process leads.
func leads(t *testing.T, p *exampletest.Process) (fence uint64) {
	t.Helper()
	must.Get(fmt.Sscanf(p.Next(t), "leading, under fence %d", &fence))(t)
	return fence
}

// An interrupt ends the story, also while it waits for a term.
func TestAnInterruptEndsTheStory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, interrupt := context.WithCancel(t.Context())
		s := story.New(func() driver.Backend { return memlock.New() }, uponTheFirstWord(interrupt))
		defer s.Close()
		if _, err := simulate(ctx, s); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

// uponTheFirstWord is a writer that calls a function.
type uponTheFirstWord func()

func (f uponTheFirstWord) Write(b []byte) (int, error) {
	f()
	return len(b), nil
}

func TestItFailsWithoutAServer(t *testing.T) {
	exampletest.Fails(t, "connection refused", "DISTLOCK_URL=redis://127.0.0.1:1")
}
