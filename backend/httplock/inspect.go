package httplock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
)

// Inspect describes a lock. Owners are empty without the right to break the lock.
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Info, error) {
	if err := b.checkName(name); err != nil {
		return driver.Info{Name: name}, err
	}
	ctx, end := b.during(ctx)
	defer end()
	var info httpwire.Info
	err := b.client.call(ctx, get("/v1/locks/"+httpwire.SegmentOf(name)), func(body io.Reader) error {
		err := decode(body, &info)
		if err == nil && info.Name != name {
			err = fmt.Errorf("the answer is about %s: a proxy may have changed the path", driver.Quote(info.Name))
		}
		return err
	})
	if err != nil {
		return driver.Info{Name: name}, inspectError("inspect", name, err)
	}
	return info.Driver(), nil
}

// inspectError returns ErrSkip if the server's backend has no inspection.
func inspectError(what, name string, err error) error {
	if errors.Is(err, driver.ErrUnsupported) {
		return driver.ErrSkip
	}
	return fail(what, name, err)
}

// List yields the names that the server lets the client see, page by page.
func (b *Backend) List(ctx context.Context, prefix string, yield func(name string) bool) error {
	if b.isClosed() {
		return driver.ErrClosed
	}
	if prefix != "" {
		if err := b.checkName(prefix); err != nil {
			return err
		}
	}
	ctx, end := b.during(ctx)
	defer end()
	for after, more := "", true; more; {
		var page httpwire.Names
		query := url.Values{"prefix": {prefix}, "after": {after}}
		err := b.client.call(ctx, get("/v1/locks?"+query.Encode()), func(body io.Reader) error {
			err := decode(body, &page)
			if more = page.Next != ""; err == nil && more && page.Next <= after {
				err = errors.New("the pages of the answer go back")
			}
			return err
		})
		if err != nil {
			return inspectError("list", prefix, err)
		}
		for _, name := range page.Names {
			if !yield(name) {
				return nil
			}
		}
		after = page.Next
	}
	return nil
}

// Revoke asks the holder for its lock.
func (b *Backend) Revoke(ctx context.Context, h driver.Hold) error {
	if err := b.checkHold(h); err != nil {
		return err
	}
	if !b.caps.Revocable.Has(h.Mode) {
		return fmt.Errorf("%w: %s can't ask the holder of a lock of mode %v", driver.ErrUnsupported, b.caps.Name, h.Mode)
	}
	ctx, end := b.during(ctx)
	defer end()
	q := post("/v1/locks/"+httpwire.SegmentOf(h.Name)+"/ask", httpwire.Ask{Owner: h.Owner, Mode: h.Mode})
	q.status, q.ends = http.StatusNoContent, true
	if err := b.client.call(ctx, q, nil); err != nil {
		return fail("revoke", h.Name, err)
	}
	return nil
}
