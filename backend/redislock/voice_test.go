package redislock

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
)

// saying is a client that answers whatever it is asked with an error, or not at all.
type saying struct {
	redisconn.Client
	err error
}

func (s saying) Do(ctx context.Context, _ string, _ []string) (any, error) {
	if s.err == nil {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return nil, s.err
}

// What a server says while it is not ready does not settle how messages are sent.
func TestVoiceLearns(t *testing.T) {
	for text, want := range map[string]speech{
		"ERR Unknown PUBSUB subcommand":         classic,
		"NOPERM this user has no permissions":   classic,
		"LOADING Redis is loading the dataset":  unsettled,
		"CLUSTERDOWN The cluster is down":       unsettled,
		"TRYAGAIN Multiple keys request during": unsettled,
	} {
		v, err := newVoice(PubSubAuto, true)
		if err != nil {
			t.Fatal(err)
		}
		err = v.learn(t.Context(), saying{err: &redisconn.ReplyError{Text: text}})
		if got := v.speech(); got != want || (err == nil) != (want != unsettled) {
			t.Errorf("%s: settled as %d, want %d; %v", text, got, want, err)
		}
	}
}

// Nobody who asks waits for another one who is not answered.
func TestVoiceLearnsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, err := newVoice(PubSubAuto, true)
		if err != nil {
			t.Fatal(err)
		}
		patient, cancel := timeout(t, 10*time.Second)
		done := make(chan error, 1)
		go func() { done <- v.learn(patient, saying{}) }()
		synctest.Wait()
		hasty, hurry := timeout(t, 20*time.Millisecond)
		defer hurry()
		start := time.Now()
		if err := v.learn(hasty, saying{}); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 20*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		cancel()
		<-done
	})
}

// stumbling is a client whose first connection has died unnoticed.
type stumbling struct {
	redisconn.Client
	asked int
}

func (s *stumbling) Do(context.Context, string, []string) (any, error) {
	if s.asked++; s.asked == 1 {
		return nil, io.EOF
	}
	return []any{}, nil
}

// A dead connection that is found by the question does not fail the call that needed it.
func TestVoiceLearnsBesideADeadConnection(t *testing.T) {
	v, err := newVoice(PubSubAuto, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := v.learn(t.Context(), &stumbling{}); err != nil || v.speech() != sharded {
		t.Errorf("settled as %d, want %d; %v", v.speech(), sharded, err)
	}
}
