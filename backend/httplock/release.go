package httplock

import (
	"context"
	"errors"
	"net/http"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
)

// Release ends a hold or a place in the queue. It is sent once: a second answer of ErrLost would hide the
// success of the first.
func (b *Backend) Release(ctx context.Context, h driver.Hold) error {
	if err := b.checkHold(h); err != nil {
		return err
	}
	m := httpwire.Hold{Name: h.Name, Owner: h.Owner, Mode: h.Mode}
	q := request{method: http.MethodPost, path: "/v1/release", body: httpwire.WriteHold(&m), status: http.StatusNoContent}
	err := b.caller.call(ctx, "release", q, nil, nil)
	if err == nil || errors.Is(err, driver.ErrLost) {
		b.news.forget(h.Owner)
	}
	if err != nil {
		return fail("release", h.Name, err)
	}
	return nil
}
