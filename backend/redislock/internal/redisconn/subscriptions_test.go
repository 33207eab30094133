package redisconn

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// clientOf returns a client of one server that answers as it is told.
func clientOf(answer func(conn int, words []string) string) *Client {
	return NewSingle("", NewServer(Options{Dialer: answeredBy(answer), Timeout: fakeTimeout}))
}

// The answer of a server that is not ready does not decide how messages are published.
func TestDetectPubSub(t *testing.T) {
	for text, want := range map[string]PubSubMode{
		"ERR Unknown PUBSUB subcommand":         PubSubClassic,
		"NOPERM this user has no permissions":   PubSubClassic,
		"LOADING Redis is loading the dataset":  PubSubUnknown,
		"CLUSTERDOWN The cluster is down":       PubSubUnknown,
		"TRYAGAIN Multiple keys request during": PubSubUnknown,
		"BUSY Redis is busy running a script.":  PubSubUnknown,
		"NOAUTH Authentication required.":       PubSubUnknown,
		"WRONGPASS invalid username-password":   PubSubUnknown,
		"ERR max number of clients reached":     PubSubUnknown,
	} {
		synctest.Test(t, func(t *testing.T) {
			c := clientOf(func(int, []string) string { return "-" + text })
			defer c.Close()
			got, err := NewPubSub(PubSubUnknown).Detect(t.Context(), c)
			if got != want || (err == nil) != (want != PubSubUnknown) {
				t.Errorf("%s: mode %d, want %d; %v", text, got, want, err)
			}
		})
	}
}

// A user who may not ask is asked for again later, and subscriptions follow the answer. What a server has said stays.
func TestDetectPubSubAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var says, subscribed atomic.Value
		says.Store("-NOPERM this user has no permissions")
		c := clientOf(func(_ int, words []string) string {
			switch words[0] {
			case "PUBSUB":
				return says.Load().(string)
			case "PING":
				return "+PONG"
			}
			subscribed.Store(words[0])
			return confirmation(words)
		})
		defer c.Close()
		p := NewPubSub(PubSubUnknown)
		s := NewSubscriptions(c, p)
		defer s.Close()
		want := func(when string, want PubSubMode) {
			t.Helper()
			if got, err := p.Detect(t.Context(), c); err != nil || got != want || p.Mode() != want {
				t.Errorf("%s: mode %d, %v; want %d", when, got, err, want)
			}
		}
		want("refused", PubSubClassic)
		h := make(confirmations, 10)
		must.Get(s.Join(t.Context(), "key", "channel", h))(t)
		<-h
		says.Store("-BUSY Redis is busy running a script.")
		time.Sleep(askAgain + 1)
		want("busy later", PubSubClassic)
		says.Store("*0")
		want("soon after", PubSubClassic)
		time.Sleep(askAgain + 1)
		want("permitted later", PubSubSharded)
		<-h
		if subscribed.Load() != "SSUBSCRIBE" {
			t.Error("the subscription did not follow")
		}
		says.Store("-NOPERM this user has no permissions")
		time.Sleep(2 * askAgain)
		want("answered once", PubSubSharded)
	})
}

// A caller does not wait for another one's query.
func TestDetectPubSubInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, c := NewPubSub(PubSubUnknown), clientOf(func(int, []string) string { return "" })
		defer c.Close()
		patient, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		done := make(chan struct{})
		go func() {
			p.Detect(patient, c)
			close(done)
		}()
		synctest.Wait()
		hasty, hurry := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer hurry()
		start := time.Now()
		if _, err := p.Detect(hasty, c); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 20*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		cancel()
		<-done
	})
}

// A dead connection that the query finds does not fail the call that needed it.
func TestDetectPubSubOnADeadConnection(t *testing.T) {
	c := clientOf(func(conn int, _ []string) string {
		if conn == 1 {
			return cut
		}
		return "*0"
	})
	defer c.Close()
	if mode, err := NewPubSub(PubSubUnknown).Detect(t.Context(), c); err != nil || mode != PubSubSharded {
		t.Errorf("mode %d, want %d; %v", mode, PubSubSharded, err)
	}
}

// confirmation is the answer to a subscription to one channel.
func confirmation(words []string) string {
	return fmt.Sprintf("*3\r\n+%s\r\n+%s\r\n:1", strings.ToLower(words[0]), words[1])
}

// confirmations is a handler that counts confirmed subscriptions.
type confirmations chan struct{}

func (c confirmations) Subscribed()     { c <- struct{}{} }
func (c confirmations) Received(string) {}
func (c confirmations) Failed(error)    {}

// A subscription that is not confirmed is requested again on a new connection, long before the
// silence of the old one would count as its end.
func TestUnconfirmedSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clientOf(func(conn int, words []string) string {
			if conn == 1 || words[0] == "PING" {
				return ""
			}
			return confirmation(words)
		})
		defer c.Close()
		s := NewSubscriptions(c, NewPubSub(PubSubClassic))
		defer s.Close()
		h := make(confirmations, 10)
		must.Get(s.Join(t.Context(), "key", "channel", h))(t)
		start := time.Now()
		<-h
		if took := time.Since(start); took > healthCheck {
			t.Errorf("confirmed after %v", took)
		}
	})
}

// Channels that are joined just when the connection is given up are subscribed, by one connection.
func TestJoinWhileTheConnectionEnds(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	var wg sync.WaitGroup
	for range 30 {
		wg.Go(func() {
			c := NewSingle("", NewServer(Options{Addr: srv.Addr(), Timeout: time.Minute}))
			defer c.Close()
			s := NewSubscriptions(c, NewPubSub(PubSubClassic))
			defer s.Close()
			s.interval = 10 * time.Millisecond
			h := make(confirmations, 1000)
			if _, err := s.Join(t.Context(), "x", "x", h); err != nil {
				t.Errorf("join: %v", err)
				return
			}
			<-h
			s.Leave("x", true)
			for ended := false; !ended; {
				s.mu.Lock()
				ended = len(s.subscribers) == 0
				s.mu.Unlock()
				time.Sleep(100 * time.Microsecond)
			}
			for i := range 5 {
				name := fmt.Sprint(i)
				if _, err := s.Join(t.Context(), name, name, h); err != nil {
					t.Errorf("join %d: %v", i, err)
					return
				}
				<-h
			}
		})
	}
	wg.Wait()
}
