package redislock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

// heard has what go-redis logs in this process, for all clients of it.
type heard struct {
	mu    sync.Mutex
	lines []string
}

func (h *heard) Printf(_ context.Context, format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, fmt.Sprintf(format, args...))
}

func (h *heard) about(s string) (lines []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.lines {
		if strings.Contains(l, s) {
			lines = append(lines, l)
		}
	}
	return lines
}

// A server that is gone is told by errors. The log of go-redis, which is the user's, has
// nothing about a client that is ours.
func TestGoneServerIsNotLogged(t *testing.T) {
	log := &heard{}
	redis.SetLogger(log)
	defer logging.Enable()
	for _, o := range []Options{{}, {Scripts: ScriptsOff}} {
		srv := testserver.Redis(t)
		b := openOwn(t, srv.Addr(), o)
		r := request("", driver.Exclusive)
		acquire(t, b, r)
		w, err := b.Watch(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		srv.Kill()
		for range 5 {
			if _, err := b.Acquire(t.Context(), request("", driver.Exclusive)); err == nil || driver.Final(err) {
				t.Errorf("acquire: %v", err)
			}
			if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; err == nil || errors.Is(err, driver.ErrLost) {
				t.Errorf("renew: %v", err)
			}
		}
		_, err = b.Acquire(t.Context(), request("", driver.Exclusive))
		if !errors.Is(err, driver.ErrUnsent) || !strings.Contains(fmt.Sprint(err), "refused") {
			t.Errorf("acquire: %v, want a refused connection, and nothing sent", err)
		}
		w.Close()
		b.Close()
		if lines := log.about(srv.Addr()); len(lines) > 0 {
			t.Errorf("%d lines are logged, such as %q", len(lines), lines[0])
		}
	}
}
