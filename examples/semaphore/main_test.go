package main

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/examples/internal/exampletest"
	"github.com/distlock/distlock/examples/internal/story"
	"github.com/distlock/distlock/examples/internal/storytest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// Four hosts call an API, three at a time, and never more: it answers once three calls are there, and counts.
func TestThreeCallAtATime(t *testing.T) {
	exampletest.OnStores(t, func(t *testing.T, url string) {
		var now atomic.Int32
		calls, three := make(chan int32, 10_000), make(chan bool)
		all := sync.OnceFunc(func() { close(three) })
		api := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			n := now.Add(1)
			defer now.Add(-1)
			if n == limit {
				all()
			}
			<-three
			time.Sleep(10 * time.Millisecond) // so that a fourth call would be seen
			calls <- n
		}))
		defer api.Close()
		var hosts []*exampletest.Process
		for range 4 {
			hosts = append(hosts, exampletest.Start(t, "DISTLOCK_URL="+url, "API_URL="+api.URL))
		}
		for range 40 {
			if n := <-calls; n > limit {
				t.Errorf("%d calls at once", n)
			}
		}
		for _, p := range hosts {
			p.Stop(t)
		}
	})
}

func TestWithoutPermitsTheLimitIsPassed(t *testing.T) {
	storytest.Run(t, func(t *testing.T, s *story.Story) {
		if most, err := simulate(t.Context(), s, call); err != nil || most <= limit {
			t.Errorf("%d calls at once, %v; it should have gone wrong", most, err)
		}
	})
}

func TestWithPermitsItIsNeverPassed(t *testing.T) {
	storytest.Run(t, func(t *testing.T, s *story.Story) {
		if most, err := simulate(t.Context(), s, callWithPermit); err != nil || most != limit {
			t.Errorf("%d calls at once, %v", most, err)
		}
	})
}

func TestItFailsWithoutAServer(t *testing.T) {
	exampletest.Fails(t, "connection refused", "DISTLOCK_URL=redis://127.0.0.1:1")
}

func TestItFailsWithoutAnAPI(t *testing.T) {
	exampletest.Fails(t, "connection refused", "DISTLOCK_URL=mem:", "API_URL=http://127.0.0.1:1")
}
