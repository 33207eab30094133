package sqlrow

import (
	"context"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

// Inspect describes a lock. It waits for nobody.
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Info, error) {
	i, err := b.inspect(ctx, name)
	return i, b.wrap("inspect", name, err)
}

func (b *Backend) inspect(ctx context.Context, name string) (driver.Info, error) {
	if err := b.open(ctx); err != nil {
		return driver.Info{}, err
	}
	s, err := b.look(ctx, name)
	if err != nil {
		return driver.Info{}, err
	}
	return s.Info(name, s.now), nil
}

// List yields the names that are held or waited for. yield may call the backend.
func (b *Backend) List(ctx context.Context, prefix string, yield func(name string) bool) error {
	return b.wrap("list", prefix, b.list(ctx, prefix, yield))
}

func (b *Backend) list(ctx context.Context, prefix string, yield func(name string) bool) error {
	return claims.Pages(prefix, func(after string) ([]string, error) {
		if err := b.open(ctx); err != nil {
			return nil, err
		}
		return b.dialect.Names(ctx, prefix, after, claims.ListPage)
	}, yield)
}
