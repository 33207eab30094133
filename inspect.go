package distlock

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/renew"
)

// Inspect returns the holders and waiters of the lock called name: since when, until when, with
// which fence, from which host and process. A free lock has no Holders. ErrUnsupported if the
// backend has no inspection.
func (c *Client) Inspect(ctx context.Context, name string) (Info, error) {
	in, err := c.inspector("inspect", name)
	if err != nil {
		return Info{}, err
	}
	if err := checkName(name); err != nil {
		return Info{}, fail("inspect", name, err)
	}
	call := c.calls.context(ctx, c.calls.timeout)
	defer call.End()
	info, err := in.Inspect(call, name)
	if err != nil {
		return Info{}, c.notImplemented("inspect", name, err)
	}
	return info, nil
}

// List yields the names with the given prefix of all locks that are held or waited
// for, in no order. An error ends it.
func (c *Client) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		in, err := c.inspector("list", prefix)
		more := true
		if err == nil {
			err = in.List(ctx, prefix, func(name string) bool {
				more = yield(name, nil)
				return more
			})
		}
		if err != nil && more {
			yield("", c.notImplemented("list", prefix, err))
		}
	}
}

// ForceUnlock releases the holders in info: those owners and no others, so that it can't hit a
// successor. ErrLost if none of them held any more. Holders in this Client are notified at once,
// others at their next renewal, or earlier where the backend notifies them. Until then they believe
// that they hold, so be sure that they are dead or stopped.
//
// ForceUnlock returns ErrInvalid if a holder is Foreign, and releases nothing: it may be data of
// another program, which would be deleted. To delete it all the same, set its Foreign to false
// first.
func (c *Client) ForceUnlock(ctx context.Context, info Info) error {
	if slices.ContainsFunc(info.Holders, func(h Holder) bool { return h.Foreign }) {
		return fail("forceunlock", info.Name, invalid("it was not written by distlock: another library's lock, or other data"))
	}
	return c.eachHolder(ctx, "forceunlock", info, func(ctx context.Context, h driver.Hold) error {
		err := c.backend.Release(ctx, h)
		own := c.watchdog.Find(func(o renew.Holder) bool { return o.(*hold).owner == h.Owner })
		if own != nil && (err == nil || errors.Is(err, ErrLost)) {
			own.Lose(renew.ErrBroken, false)()
		}
		return err
	})
}

// Revoke requests the release from the holders in info that took the lock with Revocable: those
// owners and no others, so that it can't hit a successor. They decide whether and when to release.
// nil says that the request was made. Where the coordinator does not know which holders are
// Revocable, as in ZooKeeper, it is made to all.
//
// ErrLost if none of them held any more. ErrUnsupported if the backend can't make such requests, or
// if a holder is not Revocable; the request is made to the others all the same.
func (c *Client) Revoke(ctx context.Context, info Info) error {
	r, ok := c.backend.(driver.Revoker)
	if !ok && !c.isClosed() {
		return fail("revoke", info.Name, c.cantAsk())
	}
	return c.eachHolder(ctx, "revoke", info, func(ctx context.Context, h driver.Hold) error {
		err := r.Revoke(ctx, h)
		if errors.Is(err, driver.ErrSkip) {
			return c.cantAsk()
		}
		return err
	})
}

func (c *Client) cantAsk() error {
	return fmt.Errorf("%w: %s can't ask holders for their locks", ErrUnsupported, c.caps.Name)
}

// eachHolder calls the backend for all holders in info. One that still holds is enough.
func (c *Client) eachHolder(ctx context.Context, op string, info Info, call func(context.Context, driver.Hold) error) error {
	if c.isClosed() {
		return fail(op, info.Name, ErrClosed)
	}
	bound := c.calls.context(ctx, c.calls.timeout)
	defer bound.End()
	var errs []error
	done := 0
	for _, h := range info.Holders {
		err := call(bound, driver.Hold{Name: info.Name, Owner: h.Owner, Mode: h.Mode})
		switch {
		case err == nil:
			done++
		case !errors.Is(err, ErrLost):
			errs = append(errs, err)
		}
	}
	switch {
	case len(errs) > 0:
		return fail(op, info.Name, errors.Join(errs...))
	case done == 0:
		return fail(op, info.Name, ErrLost)
	}
	return nil
}

func (c *Client) inspector(op, name string) (driver.Inspector, error) {
	if c.isClosed() {
		return nil, fail(op, name, ErrClosed)
	}
	in, ok := c.backend.(driver.Inspector)
	if !ok {
		return nil, c.notImplemented(op, name, driver.ErrSkip)
	}
	return in, nil
}

func (c *Client) notImplemented(op, name string, err error) error {
	if e := (*Error)(nil); errors.As(err, &e) {
		return err
	}
	if errors.Is(err, driver.ErrSkip) {
		err = fmt.Errorf("%w: %s can't tell who holds what", ErrUnsupported, c.caps.Name)
	}
	return fail(op, name, err)
}
