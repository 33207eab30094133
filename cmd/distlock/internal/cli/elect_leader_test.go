package cli

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

func TestLeader(t *testing.T) {
	url := memory()
	c := tenant(t, url, "17")
	wantResult(t, exitFailure, "no leader\n", "--url", url, "leader", "a:1")
	wantResult(t, exitFailure, `
{
  "name": "a:1",
  "leader": null
}
`, "--url", url, "leader", "--json", "a:1")
	must.Get(c.Mutex("a:1").Lock(t.Context()))(t)
	wantOutput(t, `
"backup" pid 17 on db1, fence 1, since TIME, job=nightly\n
`, "--url", url, "leader", "a:1")
	wantOutput(t, `
{
  "name": "a:1",
  "leader": {
    "mode": "exclusive",
    "fence": "1",
    "since": "TIME",
    "held_ms": MS,
    "left_ms": MS,
    "host": "db1",
    "pid": 17,
    "program": "backup",
    "meta": {
      "job": "nightly\n"
    }
  }
}
`, "--url", url, "leader", "--json", "a:1")
}

func TestLeaderOfWhichLittleIsKnown(t *testing.T) {
	if got := leaderLine(distlock.Holder{Held: -1, Left: -1}, time.Now()); got != "another client" {
		t.Errorf("got %q", got)
	}
}

func TestWatchLeaders(t *testing.T) {
	url := memory()
	c := tenant(t, url, "17")
	var out, warnings output
	a := &app{out: &out, err: &warnings}
	ctx, stop := context.WithCancel(t.Context())
	e := c.Election("a:1", distlock.WithTTL(time.Second))
	over := make(chan error)
	unavailable := &distlock.Error{Op: "inspect", Kind: distlock.ErrUnavailable}
	go func() {
		over <- a.watchLeaders(ctx, e, func(h distlock.Holder, err error) error {
			return errors.Join(a.showLeader("a:1", h, err, true, true), unavailable)
		})
	}()
	out.await(t, `{"name":"a:1","leader":null}`+"\n")
	lease := must.Get(c.Mutex("a:1").Lock(t.Context()))(t)
	out.await(t, `"fence":"1"`)
	must.OK(t, lease.Unlock(t.Context()))
	out.awaitThat(t, "no leader again", func(text string) bool { return strings.Count(text, "null}") == 2 })
	warnings.await(t, "backend unavailable")
	stop()
	expect.OK(t, <-over, "watchLeaders")
	broken := errors.New("broken")
	err := a.watchLeaders(t.Context(), e, func(distlock.Holder, error) error { return broken })
	if !errors.Is(err, broken) {
		t.Errorf("watchLeaders: %v", err)
	}
}
