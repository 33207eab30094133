package sqlitelock

import (
	"context"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

// Inspect describes a lock. It does not wait for writers.
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Info, error) {
	if b.closed() {
		return driver.Info{}, b.wrap("inspect", name, driver.ErrClosed)
	}
	now := b.clock.now()
	l, err := load(ctx, b.loadStmt, name, b.clock.boot, now)
	if err != nil {
		return driver.Info{}, b.wrapRead("inspect", name, err)
	}
	return l.Info(name, now), nil
}

// List yields the names that have holders or waiters, in the order of their bytes. yield
// may call the backend.
func (b *Backend) List(ctx context.Context, prefix string, yield func(name string) bool) error {
	if b.closed() {
		return b.wrap("list", prefix, driver.ErrClosed)
	}
	if err := b.checkBoot(ctx); err != nil {
		return b.wrapRead("list", prefix, err)
	}
	err := claims.Pages(prefix, func(after string) ([]string, error) { return b.page(ctx, prefix, after) }, yield)
	return b.wrapRead("list", prefix, err)
}

func (b *Backend) checkBoot(ctx context.Context) error {
	var n int
	if err := b.db.QueryRowContext(ctx, sqlBoot, b.clock.boot).Scan(&n); err != nil {
		return err
	}
	if n == 0 {
		return errAnotherBoot
	}
	return nil
}

// page reads the next names after a name. They are in order, so those with the prefix come first.
func (b *Backend) page(ctx context.Context, prefix, after string) ([]string, error) {
	rows, err := b.db.QueryContext(ctx, sqlList, prefix, after, b.clock.now(), claims.ListPage)
	if err != nil {
		return nil, err
	}
	return claims.ScanNames(rows)
}
