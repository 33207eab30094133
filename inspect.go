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

// Inspect tells who holds the lock called name: since when, until when, with which
// fence, from which host and process, and who waits. A free lock has no Holders.
// ErrUnsupported if the backend can't tell.
func (c *Client) Inspect(ctx context.Context, name string) (Info, error) {
	in, err := c.inspector("inspect", name)
	if err != nil {
		return Info{}, err
	}
	if err := checkName(name); err != nil {
		return Info{}, fail("inspect", name, err)
	}
	ctx, cancel := c.calls.context(ctx, c.calls.timeout)
	defer cancel()
	info, err := in.Inspect(ctx, name)
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

// ForceUnlock releases by force what info shows as holding: those owners and no others,
// so that it can't hit a successor. ErrLost if none of them held any more. Holders in
// this Client learn of it at once, others at their next renewal, or earlier where the
// backend tells them; until then they believe to hold, so be sure that they are dead or
// stopped.
//
// ErrInvalid if a holder is Foreign, and nothing is broken: it may be another program's data,
// which would be deleted. To break it all the same set its Foreign to false first.
func (c *Client) ForceUnlock(ctx context.Context, info Info) error {
	if slices.ContainsFunc(info.Holders, func(h Holder) bool { return h.Foreign }) {
		return fail("forceunlock", info.Name, invalid("it was not written by distlock: another library's lock, or other data"))
	}
	return c.eachHolder(ctx, "forceunlock", info, func(ctx context.Context, h driver.Hold) error {
		err := c.backend.Release(ctx, h)
		own := c.watchdog.Find(func(o renew.Holder) bool { return o.(*hold).owner == h.Owner })
		if own != nil && (err == nil || errors.Is(err, ErrLost)) {
			own.Lose(errBroken, false)
		}
		return err
	})
}

// Revoke asks those whom info shows as holding to give the lock back, if they took it with
// Revocable: those owners and no others, so that it can't ask a successor. Whether and when
// they do is up to them. nil says that they were asked; where the coordinator does not know
// who agreed to it, as in ZooKeeper, also those are asked who do not listen.
//
// ErrLost if none of them held any more. ErrUnsupported if the backend can't ask, or if a
// holder has not agreed to it: if there are several the others were asked all the same.
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

// eachHolder calls the backend for all holders that were inspected. It is enough if one of
// them still holds.
func (c *Client) eachHolder(ctx context.Context, op string, info Info, call func(context.Context, driver.Hold) error) error {
	if c.isClosed() {
		return fail(op, info.Name, ErrClosed)
	}
	ctx, cancel := c.calls.context(ctx, c.calls.timeout)
	defer cancel()
	var errs []error
	done := 0
	for _, h := range info.Holders {
		err := call(ctx, driver.Hold{Name: info.Name, Owner: h.Owner, Mode: h.Mode})
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
