package pglock

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/distlock/distlock/driver"
)

// Commit lets work join the transaction that has a lock, and commits it: what the work
// stores and the end of the lock are one. It is for strategy [Advisory] at level
// [Transaction]; others answer ErrUnsupported. The owner is that of a lease, see its method
// Owner.
//
// If work answers an error, or ctx has ended, nothing of it is stored, and the lock has ended
// too. A hold that is lost answers ErrLost: before the work is begun, or instead of
// storing it. If the server's answer to the commit is missing the error says that the
// outcome is unknown. An Unlock after Commit answers nil.
//
// Nothing renews the lease while the work runs, so that must end within what is left of its TTL,
// and the server ends a transaction that is silent for a TTL. The work must not end the
// transaction itself.
func (b *Backend) Commit(ctx context.Context, owner string, work func(tx *sql.Tx) error) error {
	if a, ok := b.strategy.(advisory); ok && a.OnePerConn {
		return a.Commit(ctx, owner, work)
	}
	return fmt.Errorf("%w: pglock: Commit is for strategy %s at level %s", driver.ErrUnsupported, Advisory, Transaction)
}
