package redisconn

import (
	"context"
	"fmt"
	"sync/atomic"
)

// PubSubMode says which commands publish and subscribe.
type PubSubMode uint32

// The modes.
const (
	PubSubUnknown PubSubMode = iota // until a server has been queried
	PubSubClassic                   // PUBLISH and SUBSCRIBE
	PubSubSharded                   // SPUBLISH and SSUBSCRIBE, which only a cluster has
)

// PubSub holds the mode of one Client. It never changes once it is known: messages must go on to be
// heard.
type PubSub struct{ mode atomic.Uint32 }

// NewPubSub returns a PubSub of this mode.
func NewPubSub(mode PubSubMode) *PubSub {
	p := &PubSub{}
	p.mode.Store(uint32(mode))
	return p
}

// Mode returns the mode that is known.
func (p *PubSub) Mode() PubSubMode { return PubSubMode(p.mode.Load()) }

// Detect returns the mode. It queries a server if the mode is unknown. A server that is not ready
// leaves it unknown. The query changes nothing, so it is repeated once: a connection that died
// unnoticed must not make the outcome unknown of the command that follows.
func (p *PubSub) Detect(ctx context.Context, c Client) (PubSubMode, error) {
	if mode := p.Mode(); mode != PubSubUnknown {
		return mode, nil
	}
	query := func() (refused bool, err error) {
		_, err = c.Do(ctx, "", []string{"PUBSUB", "SHARDNUMSUB", "0"})
		_, refused = AsReply(err)
		return refused, err
	}
	refused, err := query()
	if err != nil && !refused && ctx.Err() == nil {
		refused, err = query()
	}
	mode := PubSubSharded
	if err != nil {
		if !refused || NotExecuted(err) {
			return PubSubUnknown, fmt.Errorf("asking whether messages are sharded: %w", err)
		}
		mode = PubSubClassic
	}
	p.mode.CompareAndSwap(uint32(PubSubUnknown), uint32(mode))
	return p.Mode(), nil
}

// Publish returns the command that publishes a message.
func (p *PubSub) Publish(channel, message string) []string {
	if p.Mode() == PubSubSharded {
		return []string{"SPUBLISH", channel, message}
	}
	return []string{"PUBLISH", channel, message}
}
