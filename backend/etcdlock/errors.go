package etcdlock

import (
	"errors"
	"fmt"

	"github.com/distlock/distlock/driver"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// isLeaderless: a server has refused since it has no leader.
func isLeaderless(err error) bool { return errors.Is(err, rpctypes.ErrNoLeader) }

// explain makes facts of those errors of the server that are: who is not let in gets
// nothing, and asking again is no use. All others stay unknown.
func explain(err error) error {
	for _, known := range []struct {
		err  error
		text string
	}{
		{rpctypes.ErrPermissionDenied, "the server's user may not do this (docs/backends/etcd.md lists what it needs)"},
		{rpctypes.ErrUserEmpty, "the server wants a user and a password, as in etcd://user:password@host"},
		{rpctypes.ErrAuthFailed, "wrong user or password"},
		{rpctypes.ErrRequestTooLarge, "name and metadata are too large for the server"},
	} {
		if errors.Is(rpctypes.Error(err), known.err) {
			return fmt.Errorf("%w: %s: %w", driver.ErrInvalid, known.text, err)
		}
	}
	return err
}
