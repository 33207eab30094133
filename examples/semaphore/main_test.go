package main

import (
	"testing"

	"github.com/distlock/distlock/examples/internal/exampletest"
	"github.com/distlock/distlock/examples/internal/storytest"
	"github.com/distlock/distlock/internal/testkit/must"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// Four hosts call, three at a time at most.
func TestThreeCallAtATime(t *testing.T) {
	exampletest.OnStores(t, func(t *testing.T, url string) {
		lines, hosts := make(chan string), []*exampletest.Process{}
		for range 4 {
			p := exampletest.Start(t, "DISTLOCK_URL="+url)
			hosts = append(hosts, p)
			go func() {
				for range 20 {
					lines <- p.Next(t)
				}
			}()
		}
		for range 4 * 20 {
			if line := <-lines; line != "calling" && line != "called" {
				t.Error(line)
			}
		}
		for _, p := range hosts {
			must.OK(t, p.Process.Kill())
		}
	})
}

func TestWithoutPermitsTheLimitIsPassed(t *testing.T) {
	if most, err := simulate(t.Context(), storytest.New(t), call); err != nil || most <= limit {
		t.Errorf("%d calls at once, %v; it should have gone wrong", most, err)
	}
}

func TestWithPermitsItIsNeverPassed(t *testing.T) {
	if most, err := simulate(t.Context(), storytest.New(t), callWithPermit); err != nil || most > limit {
		t.Errorf("%d calls at once, %v", most, err)
	}
}
