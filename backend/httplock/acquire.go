package httplock

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
)

// Acquire makes one attempt. A server that may have received it is the last one that gets it.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := b.checkRequest(r); err != nil {
		return driver.Grant{}, err
	}
	m := httpwire.FromRequest(r)
	q := request{method: http.MethodPost, path: acquirePath, body: b.meta.Request(&m), status: http.StatusOK}
	finish := b.news.subscribe(r, &q)
	var g httpwire.Grant
	check := func(g httpwire.Grant) error { return b.checkGrant(r, g) }
	var err error
	if r.OnRevoke != nil { // it may have to wait for its stream of news
		err = b.caller.alone(ctx, q, &g, check)
	} else {
		err = b.caller.call(ctx, "acquire", q, &g, check)
	}
	finish(err)
	b.late.note(r.Hold, err)
	b.worked(err)
	if err != nil {
		return driver.Grant{}, fail("acquire", r.Name, err)
	}
	return driver.Grant{Fence: g.Fence, Fences: g.Fences, TTL: httpwire.Duration(g.TTL)}, nil
}

func (b *Backend) checkRequest(r driver.Request) error {
	if err := b.checkName(r.Name); err != nil {
		return err
	}
	if err := r.Validate(b.caps); err != nil {
		return err
	}
	size := 0
	for k, v := range r.Meta {
		size += len(k) + len(v)
	}
	if size > httpwire.MaxMeta {
		return fmt.Errorf("%w: the meta of %s has %d bytes: a server takes %d",
			driver.ErrInvalid, driver.Quote(r.Name), size, httpwire.MaxMeta)
	}
	return nil
}

// checkGrant returns an error, which is no fact, for a grant that can't be.
func (b *Backend) checkGrant(r driver.Request, g httpwire.Grant) error {
	fenced := g.Fence > 0 && g.Fence < 1<<63 && g.Fences > 0 && g.Fences <= max(r.Fences, 1)
	if g.TTL <= 0 || b.caps.Fence && !fenced {
		return errors.New("the answer is malformed: it has no TTL or not the fences")
	}
	return nil
}
