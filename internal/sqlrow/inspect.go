package sqlrow

import (
	"context"
	"strings"

	"github.com/distlock/distlock/driver"
)

// listPage is how many names List reads at a time.
const listPage = 512

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
	for after := ""; ; {
		if err := b.open(ctx); err != nil {
			return err
		}
		page, err := b.dialect.Names(ctx, prefix, after, listPage)
		if err != nil {
			return err
		}
		for _, name := range page {
			if !strings.HasPrefix(name, prefix) || !yield(name) {
				return nil
			}
		}
		if len(page) < listPage {
			return nil
		}
		after = page[len(page)-1]
	}
}
