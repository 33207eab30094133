package redisconn

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/distlock/distlock/internal/testkit/must"
)

// Commands that were given up before they were sent do not pile up before a silent server.
func TestPipelineForgetsWhatWasNotSent(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
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

// Until a command that was given up is answered, its caller is told that it may still be executed, however late the context's own
// interruption comes.
func TestLateInterruptionDoesNotEndTheWait(t *testing.T) {
	c := newOwnClient(redis.Options{ReadTimeout: time.Minute}, &logins{})
	defer c.close()
	synctest.Test(t, func(t *testing.T) {
		raw, server := net.Pipe()
		own := &ownConn{Conn: raw, client: c, logins: &logins{}}
		own.answerDue.Store(true)
		c.dialed.Store(own)
		c.interrupt()
		landed := make(chan struct{})
		go func() {
			c.awaitAnswer()
			close(landed)
		}()
		synctest.Wait()
		c.interrupt()
		synctest.Wait()
		select {
		case <-landed:
			t.Error("the command counts as answered, and was not")
		default:
		}
		server.Write([]byte("+"))
		<-landed
	})
}

// A connection that is made after its caller has given up is closed.
func TestConnectionOfNobodyIsClosed(t *testing.T) {
	ours, server := net.Pipe()
	dials, goOn := make(chan struct{}), make(chan struct{})
	c := newGoRedisServer(&redis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) {
		close(dials)
		<-goOn
		return ours, nil
	}})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-dials
		cancel()
	}()
	if _, err := c.Do(ctx, []string{"PING"}); !errors.Is(err, context.Canceled) {
		t.Errorf("a command whose connection is not there yet: %v", err)
	}
	c.Close()
	for closed := false; !closed; time.Sleep(time.Millisecond) {
		c.pipe.mu.Lock()
		closed = c.pipe.previous == nil
		c.pipe.mu.Unlock()
	}
	close(goOn)
	if n, err := server.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes were sent", n)
	}
}
