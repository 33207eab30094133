package etcdlock

import (
	"errors"
	"fmt"
	"strings"

	"github.com/distlock/distlock/driver"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// noLeader: a server has refused since it has no leader.
func noLeader(err error) bool { return errors.Is(err, rpctypes.ErrNoLeader) }

// tooLargeToSend: the client has refused to send that much.
func tooLargeToSend(err error) bool {
	return status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "trying to send message larger")
}

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
		if errors.Is(rpctypes.Error(err), known.err) || known.err == rpctypes.ErrRequestTooLarge && tooLargeToSend(err) {
			return fmt.Errorf("%w: %s: %w", driver.ErrInvalid, known.text, err)
		}
	}
	return err
}
