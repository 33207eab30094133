package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
)

// callTimeout is how long one call of the backend may take. The outcome is unknown after that.
const callTimeout = 10 * time.Second

// inspection asks the backend for its locks, and measures the calls. They return errNoInspection if it can't tell.
type inspection struct {
	inspector driver.Inspector // nil: the backend has none
	metrics   *metrics
}

var errNoInspection = fmt.Errorf("%w: the backend doesn't know its holders", driver.ErrUnsupported)

// list calls f with each name that begins with prefix, until f returns false.
func (n inspection) list(ctx context.Context, prefix string, f func(name string) bool) error {
	return n.call(ctx, "list", func(ctx context.Context) error { return n.inspector.List(ctx, prefix, f) })
}

// info describes a lock.
func (n inspection) info(ctx context.Context, name string) (info driver.Info, err error) {
	err = n.call(ctx, "inspect", func(ctx context.Context) error {
		info, err = n.inspector.Inspect(ctx, name)
		return err
	})
	return info, err
}

func (n inspection) call(ctx context.Context, op string, f func(context.Context) error) error {
	if n.inspector == nil {
		return errNoInspection
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	began := time.Now()
	err := f(ctx)
	n.metrics.backend(op, err, time.Since(began))
	if errors.Is(err, driver.ErrSkip) {
		return errNoInspection
	}
	return err
}
