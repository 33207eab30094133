package sqlitelock

import (
	"context"

	"github.com/distlock/distlock/driver"
)

// Watch wakes r's owner when the lock, or a place in its line, is given back. It is
// there on Linux only; elsewhere it answers ErrSkip.
func (b *Backend) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	if b.closed() {
		return driver.Watch{}, b.wrap("watch", r.Name, driver.ErrClosed)
	}
	if err := ctx.Err(); err != nil {
		return driver.Watch{}, b.wrap("watch", r.Name, err)
	}
	w, err := b.bell.listen(r.Name)
	return w, b.wrap("watch", r.Name, err)
}
