package redislock

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
)

// PubSub says how the end of a hold is told to those who wait for it. All users of a
// lock must agree on it; who does not is not told, and polls.
type PubSub string

// The choices. They are Redisson's.
const (
	// PubSubAuto is the default: sharded in a cluster whose servers know it and let their
	// user ask (PUBSUB SHARDNUMSUB), else classic.
	PubSubAuto PubSub = "auto"

	// PubSubOn is sharded: SPUBLISH and SSUBSCRIBE. Only a cluster has that.
	PubSubOn PubSub = "on"

	// PubSubOff is classic: PUBLISH and SUBSCRIBE.
	PubSubOff PubSub = "off"

	// PubSubBoth tells and hears it both ways, for a cluster whose other users do not
	// agree. Waiters then ask once more than they must.
	PubSubBoth PubSub = "both"
)

// speech is a PubSub that is settled.
type speech uint32

const (
	unsettled speech = iota
	classic
	sharded
	bothWays
)

// voice is how one backend publishes and subscribes.
type voice struct {
	settled atomic.Uint32
}

// newVoice is settled unless it is for the server to say.
func newVoice(p PubSub, strict bool) (*voice, error) {
	v := &voice{}
	switch p {
	case "", PubSubAuto:
		if !strict {
			v.settle(classic)
		}
		return v, nil
	case PubSubOff:
		v.settle(classic)
		return v, nil
	case PubSubOn, PubSubBoth:
		if !strict {
			return nil, fmt.Errorf("%w: pubsub %q: only a Redis Cluster has sharded messages: want %q or %q", driver.ErrInvalid, p, PubSubAuto, PubSubOff)
		}
		v.settle(map[PubSub]speech{PubSubOn: sharded, PubSubBoth: bothWays}[p])
		return v, nil
	}
	return nil, fmt.Errorf("%w: pubsub %q: want %q, %q, %q or %q", driver.ErrInvalid, p, PubSubAuto, PubSubOn, PubSubOff, PubSubBoth)
}

// settle is for once: what has been said must go on to be heard.
func (v *voice) settle(s speech) { v.settled.CompareAndSwap(uint32(unsettled), uint32(s)) }
func (v *voice) speech() speech  { return speech(v.settled.Load()) }

// learn asks the server if it is for it to say. One that is not ready does not say. The
// question changes nothing, so a connection that had died unnoticed may be met once: that
// is no reason to leave the outcome of the call that needs the answer unknown.
func (v *voice) learn(ctx context.Context, c redisconn.Client) error {
	if v.speech() != unsettled {
		return nil
	}
	ask := func() (bool, error) {
		_, err := c.Do(ctx, "", []string{"PUBSUB", "SHARDNUMSUB", "0"})
		_, refused := redisconn.AsReply(err)
		return refused, err
	}
	refused, err := ask()
	if err != nil && !refused && ctx.Err() == nil {
		refused, err = ask()
	}
	switch {
	case err == nil:
		v.settle(sharded)
	case refused && !redisconn.NotExecuted(err):
		v.settle(classic)
	default:
		return fmt.Errorf("asking whether messages are sharded: %w", err)
	}
	return nil
}

// publish are the commands that tell those who wait.
func (v *voice) publish(channel, message string) [][]string {
	var commands [][]string
	if v.tells(true) {
		commands = append(commands, []string{"SPUBLISH", channel, message})
	}
	if v.tells(false) {
		commands = append(commands, []string{"PUBLISH", channel, message})
	}
	return commands
}

// each calls f for each way with the channels that are told in it, the sharded one last.
func (v *voice) each(ctx context.Context, channels []string, f func(ctx context.Context, sharded bool, channels []string) error) error {
	for _, isSharded := range []bool{false, true} {
		if len(channels) == 0 || !v.tells(isSharded) {
			continue
		}
		if err := f(ctx, isSharded, channels); err != nil {
			return err
		}
	}
	return nil
}

// tells reports whether messages come in this way.
func (v *voice) tells(isSharded bool) bool {
	s := v.speech()
	return s == bothWays || isSharded == (s == sharded)
}

// last reports whether what was said of a channel is the last word: the ways take turns
// as each has them.
func (v *voice) last(e redisconn.Event) bool { return e.Sharded || !v.tells(true) }
