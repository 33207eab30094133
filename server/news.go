package server

import (
	"encoding/hex"
	"net/http"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
)

// subscribe adds the callbacks by which r's client gets the events of its hold, if the request has a ClientHeader.
func (c *exchange) subscribe(r *driver.Request, revocable bool) error {
	client := c.r.Header.Get(httpwire.ClientHeader)
	if client == "" {
		if revocable {
			return invalid("revocable needs the header %s, and a client that reads /v1/news with it", httpwire.ClientHeader)
		}
		return nil
	}
	if !isSecret(client) {
		return errSecret
	}
	subs, h, key := &c.s.subscribers, r.Hold, clientKey{c.who.Name, client}
	r.OnLost = func() {
		subs.post(key, httpwire.EventLost, h)
		c.s.seen.lost(h)
	}
	if revocable {
		if !c.s.caps.Revocable.Has(r.Mode) {
			return problem(http.StatusNotImplemented, httpwire.Unsupported, "the backend can't ask the holder of a lock of mode %v", r.Mode)
		}
		r.OnRevoke = func() { subs.post(key, httpwire.EventAsked, h) }
	}
	return nil
}

var errSecret = invalid("%s is not a secret: want at least %d random bytes in hex", httpwire.ClientHeader, httpwire.SecretBytes)

func isSecret(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) >= httpwire.SecretBytes && len(b) <= 64
}

// news sends a client the news of its holds.
func (c *exchange) news() error {
	if err := c.noBody(); err != nil {
		return err
	}
	client := c.r.Header.Get(httpwire.ClientHeader)
	if !isSecret(client) {
		return errSecret
	}
	ctx, end, err := c.stream()
	if err != nil {
		return err
	}
	defer end()
	m := c.s.subscribers.enter(clientKey{c.who.Name, client})
	defer c.s.subscribers.leave(m)
	e := c.events()
	return e.forward(ctx, httpwire.EventHello, m.added, func() error {
		pending := c.s.subscribers.take(m)
		for i, p := range pending {
			if err := e.send(p.event, p.news); err != nil {
				c.s.subscribers.putBack(m, pending[i:])
				return err
			}
		}
		return nil
	})
}
