package server

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
)

// odd is a backend that is slow for one lock, and has no answer for another.
type odd struct{ *memlock.Backend }

func (o odd) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	switch r.Name {
	case "a/slow":
		time.Sleep(slow)
	case "a/unanswered":
		return driver.Grant{}, errText("connection reset")
	}
	return o.Backend.Acquire(ctx, r)
}

// A logger at slog.LevelInfo gets a line for each call that an operator should know of, and one at slog.LevelDebug for all.
func TestLogOfEvents(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		event                   bool
		path, body, token, says string
	}{
		"a lock":                           {false, "/v1/acquire", hold("a/free", ownerB), "t", "lock=a/free status=200 outcome=ok"},
		"a refusal":                        {false, "/v1/acquire", hold("a/held", ownerB), "t", "lock=a/held status=423 outcome=held"},
		"a wait":                           {false, "/v1/acquire", waiting("a/held", ownerB, 10_000), "t", "lock=a/held status=423 outcome=held"},
		"a wait that the client ends":      {false, "/v1/acquire", waiting("a/held", ownerB, 50_000), "t", "lock=a/held"},
		"a wrong request":                  {false, "/v1/acquire", "{}", "t", "outcome=invalid"},
		"a renewal":                        {false, "/v1/renew", `{"holds":[` + hold("a/held", ownerA) + `]}`, "t", "status=200 outcome=ok"},
		"a lost hold among others renewed": {true, "/v1/renew", `{"holds":[` + hold("a/held", ownerA) + "," + hold("a/lost", ownerB) + `]}`, "t", "lock=a/lost status=200 outcome=lost"},
		"a lost hold":                      {true, "/v1/release", hold("a/lost", ownerB), "t", "lock=a/lost status=410 outcome=lost"},
		"a right that is missing":          {true, "/v1/acquire", hold("b", ownerB), "t", "who=ci from=192.0.2.1:1234 call=\"POST /v1/acquire\" lock=b status=403 outcome=denied"},
		"a wrong token":                    {true, "/v1/acquire", hold("a/free", ownerB), "wrong", "status=401 outcome=denied"},
		"no answer":                        {true, "/v1/acquire", hold("a/unanswered", ownerB), "t", "lock=a/unanswered status=503 outcome=unknown"},
		"a slow call":                      {true, "/v1/acquire", hold("a/slow", ownerB), "t", "lock=a/slow status=200 outcome=ok"},
	} {
		for _, level := range []slog.Level{slog.LevelInfo, slog.LevelDebug} {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				s, err := New(odd{memlock.New()}, Options{
					Access: tokens(t, "ci sha256:"+HashToken("t")+" lock a/\n"), Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: level})),
				})
				expect.OK(t, err)
				defer s.drain()
				bare(t.Context(), s, "POST", "/v1/acquire", hold("a/held", ownerA), "Authorization", "Bearer t")
				log.Reset()
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				bare(ctx, s, "POST", c.path, c.body, "Authorization", "Bearer "+c.token)
				if logged := strings.Contains(log.String(), c.says); logged != (c.event || level == slog.LevelDebug) || !logged && log.Len() > 0 {
					t.Errorf("%s, at level %v: %s", what, level, log.String())
				}
			})
		}
	}
}

// A drain is logged, and what it cuts short is not.
func TestLogOfADrain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := serverOf(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
		bare(t.Context(), s, "POST", "/v1/acquire", hold("x", ownerA))
		go bare(t.Context(), s, "POST", "/v1/acquire", waiting("x", ownerB, 50_000))
		synctest.Wait()
		expect.OK(t, s.Drain(t.Context()))
		synctest.Wait()
		if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, `msg="the server drains"`) {
			t.Error(text)
		}
	})
}
