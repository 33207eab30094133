package redisconn

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Commands that were given up before they were sent do not pile up before a silent server.
func TestPipelineForgetsWhatWasNotSent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := newGoRedisServer(&redis.Options{Addr: l.Addr().String(), DialTimeout: time.Minute, ReadTimeout: time.Minute})
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for range 2000 {
		callers.Go(func() {
			if err := c.pipe.do(ctx, &pipelineRequest{cmds: []singleTry{newCommand(ctx, []string{"PING"})}}); !errors.Is(err, context.Canceled) {
				t.Errorf("a command to a silent server: %v", err)
			}
		})
	}
	for waits := 0; waits < 1000; {
		c.pipe.mu.Lock()
		waits = len(c.pipe.waiting)
		c.pipe.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	cancel()
	callers.Wait()
	c.pipe.mu.Lock()
	defer c.pipe.mu.Unlock()
	if n := len(c.pipe.waiting); n > 0 {
		t.Errorf("%d abandoned commands wait", n)
	}
}
