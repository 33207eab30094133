package server

import (
	"context"
	"errors"
	"fmt"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
)

// watch signals when an attempt may succeed. The stream ends with the request, or when the server drains.
func (c *exchange) watch() error {
	var m httpwire.Request
	if err := c.decode(&m, httpwire.MaxBody); err != nil {
		return err
	}
	r, err := c.request(m)
	if err != nil {
		return err
	}
	w, ok := c.s.backend.(driver.Watcher)
	if !ok {
		return errNoWatch
	}
	ctx, end, err := c.stream()
	if err != nil {
		return err
	}
	defer end()
	arming, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	armed, err := w.Watch(arming, r)
	if errors.Is(err, driver.ErrSkip) {
		return errNoWatch
	}
	if err != nil {
		return err
	}
	defer armed.Close()
	e := c.events()
	return e.forward(ctx, httpwire.EventArmed, armed.Ready, func() error {
		if err := c.may(Lock, r.Name); err != nil {
			return err
		}
		return e.send(httpwire.EventReady, nil)
	})
}

var errNoWatch = fmt.Errorf("%w: the backend has no signals for this lock: poll", driver.ErrUnsupported)
