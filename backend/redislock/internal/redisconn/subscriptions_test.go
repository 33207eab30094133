package redisconn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// refusingClient answers every command with an error, or not at all.
type refusingClient struct {
	Client
	err     error
	answers bool
}

func (c refusingClient) Do(ctx context.Context, _ string, _ []string) (any, error) {
	if c.answers {
		return []any{}, nil
	}
	if c.err == nil {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return nil, c.err
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
		got, err := NewPubSub(PubSubUnknown).Detect(t.Context(), refusingClient{err: &ReplyError{Text: text}})
		if got != want || (err == nil) != (want != PubSubUnknown) {
			t.Errorf("%s: mode %d, want %d; %v", text, got, want, err)
		}
	}
}

// A user who may not ask is asked for again later, and subscriptions follow the answer. What a server has said stays.
func TestDetectPubSubAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, c := NewPubSub(PubSubUnknown), &refusingClient{err: &ReplyError{Text: "NOPERM this user has no permissions"}}
		srv := &silentServer{}
		s := NewSubscriptions(NewSingle("", srv), p)
		defer s.Close()
		want := func(when string, want PubSubMode) {
			t.Helper()
			if got, err := p.Detect(t.Context(), c); err != nil || got != want || p.Mode() != want {
				t.Errorf("%s: mode %d, %v; want %d", when, got, err, want)
			}
		}
		want("refused", PubSubClassic)
		srv.conns = 1 // its next connections answer
		h := make(confirmations, 10)
		must.Get(s.Join(t.Context(), "key", "channel", h))(t)
		<-h
		*c = refusingClient{err: &ReplyError{Text: "BUSY Redis is busy running a script."}}
		time.Sleep(askAgain + 1)
		want("busy later", PubSubClassic)
		*c = refusingClient{answers: true}
		want("soon after", PubSubClassic)
		time.Sleep(askAgain + 1)
		want("permitted later", PubSubSharded)
		<-h
		if !srv.sharded {
			t.Error("the subscription did not follow")
		}
		*c = refusingClient{err: &ReplyError{Text: "NOPERM this user has no permissions"}}
		time.Sleep(2 * askAgain)
		want("answered once", PubSubSharded)
	})
}

// A caller does not wait for another one's query.
func TestDetectPubSubInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPubSub(PubSubUnknown)
		patient, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		done := make(chan struct{})
		go func() {
			p.Detect(patient, refusingClient{})
			close(done)
		}()
		synctest.Wait()
		hasty, hurry := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer hurry()
		start := time.Now()
		if _, err := p.Detect(hasty, refusingClient{}); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 20*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		cancel()
		<-done
	})
}

// brokenOnceClient is a client whose first connection has died unnoticed.
type brokenOnceClient struct {
	Client
	commands int
}

func (c *brokenOnceClient) Do(context.Context, string, []string) (any, error) {
	if c.commands++; c.commands == 1 {
		return nil, io.EOF
	}
	return []any{}, nil
}

// A dead connection that the query finds does not fail the call that needed it.
func TestDetectPubSubOnADeadConnection(t *testing.T) {
	if mode, err := NewPubSub(PubSubUnknown).Detect(t.Context(), &brokenOnceClient{}); err != nil || mode != PubSubSharded {
		t.Errorf("mode %d, want %d; %v", mode, PubSubSharded, err)
	}
}

// confirmations is a handler that counts confirmed subscriptions.
type confirmations chan struct{}

func (c confirmations) Subscribed()     { c <- struct{}{} }
func (c confirmations) Received(string) {}
func (c confirmations) Failed(error)    {}

// silentServer is a server whose first connection for subscriptions never answers.
type silentServer struct {
	Server
	conns   int
	sharded bool
	on      func(Event)
}

func (s *silentServer) Listen(_ context.Context, on func(Event)) (Listener, error) {
	s.conns++
	s.on = on
	return s, nil
}

func (s *silentServer) Subscribe(_ context.Context, sharded bool, channels []string) error {
	s.sharded = sharded
	for _, c := range channels {
		if s.conns > 1 {
			s.on(Event{Kind: Subscribed, Channel: c, Sharded: sharded})
		}
	}
	return nil
}

func (s *silentServer) Unsubscribe(context.Context, bool, []string) error { return nil }
func (s *silentServer) Close()                                            {}

// A subscription that is not confirmed is requested again on a new connection, long before the
// silence of the old one would count as its end.
func TestUnconfirmedSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSubscriptions(NewSingle("", &silentServer{}), NewPubSub(PubSubClassic))
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
