package connlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
)

// probeLease is that of the links that probe. The first locks use them, if they have the
// usual TTL.
const probeLease = 30 * time.Second

// minPool is what a limited pool must have: two links for the probe, and a connection for others.
const minPool = 3

// probe takes a lock of nobody's on two links: the second must be refused until the first has given
// it back.
func (b *Backend) probe(ctx context.Context) error {
	if err := CheckPool(b.DB); err != nil {
		return err
	}
	l := Lock{Name: "distlock probe " + driver.NewOwner(), Owner: driver.NewOwner(), Probe: true}
	l.Key = b.Dialect.Key(l.Name)
	one, err := b.dial(ctx, probeLease)
	if err != nil {
		return err
	}
	two, err := b.dial(ctx, probeLease)
	if err != nil {
		one.conn.Close()
		return err
	}
	err = exclude(ctx, one.conn, two.conn, l)
	if err == nil {
		err = b.Dialect.RemoveProbe(ctx, l)
	}
	if err != nil {
		one.conn.Close()
		two.conn.Close()
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range []*lockConn{one, two} {
		s.answered(time.Now())
		b.conns[s] = struct{}{}
		b.keepIfUnused(s)
	}
	return nil
}

// CheckPool refuses a pool whose limit is too low.
func CheckPool(db *sql.DB) error {
	if n := db.Stats().MaxOpenConnections; n > 0 && n < minPool {
		return fmt.Errorf("%w: the pool's limit is %d; locks on connections need %d at least: raise SetMaxOpenConns, or max_connections in a URL", driver.ErrInvalid, n, minPool)
	}
	return nil
}

// exclude tries whether two links exclude each other.
func exclude(ctx context.Context, one, two Conn, l Lock) error {
	for _, step := range []struct {
		link Conn
		want bool
		drop bool
	}{{one, true, false}, {two, false, false}, {one, true, true}, {two, true, true}} {
		if step.link == one && step.drop {
			if err := one.Unlock(ctx, l); err != nil {
				return err
			}
			continue
		}
		_, ok, err := step.link.TryLock(ctx, l)
		if err != nil {
			return err
		}
		if ok != step.want {
			return fmt.Errorf("%w: two connections do not exclude each other: the server, or a pooler or proxy before it, does not keep what belongs to a connection", driver.ErrUnsupported)
		}
	}
	return errors.Join(two.Unlock(ctx, l))
}
