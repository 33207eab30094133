package zklock

import (
	"errors"
	"fmt"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/zk"
)

var (
	// errGone means that the place was found to be gone, so that all has to begin anew.
	errGone = errors.New("the lock's node is gone")

	errUnproven = errors.New("the servers have not shown that the session lives long enough")
)

// refusals are answers after which nothing was done.
var refusals = []error{
	zk.ErrNotSent, zk.ErrNoNode, zk.ErrNodeExists, zk.ErrNoAuth, zk.ErrBadArguments, zk.ErrNoChildren,
	zk.ErrUnimplemented, zk.ErrTooLarge, zk.ErrSessionExpired, zk.ErrAuthFailed,
}

// nothingDone: a request that failed so has changed nothing.
func nothingDone(err error) bool {
	for _, refusal := range refusals {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return errors.Is(err, driver.ErrInvalid)
}

// fail puts a failed call into words. What will never succeed is ErrInvalid.
func (b *Backend) fail(what, name string, err error) error {
	if held := (*driver.HeldError)(nil); errors.As(err, &held) {
		return held
	}
	switch {
	case b.isClosed():
		return driver.ErrClosed
	case driver.Final(err):
		return fmt.Errorf("zklock: %s %s: %w", what, driver.Quote(name), err)
	}
	if why := b.opts.never(err); why != "" {
		return fmt.Errorf("zklock: %s %s: %w: %s: %w", what, driver.Quote(name), driver.ErrInvalid, why, err)
	}
	return fmt.Errorf("zklock: %s %s: %w", what, driver.Quote(name), err)
}

// never says why asking again is no use; empty: it may be.
func (o *options) never(err error) string {
	switch {
	case errors.Is(err, zk.ErrNoAuth):
		if o.user == "" {
			return "the URL has no user to whom it would be permitted"
		}
		return fmt.Sprintf("it is not permitted to the user %q with this password", o.user)
	case errors.Is(err, zk.ErrAuthFailed):
		return fmt.Sprintf("the servers refuse the user %q", o.user)
	case errors.Is(err, zk.ErrNoChroot):
		return fmt.Sprintf("the chroot %s does not exist: it is not created by itself", o.chroot)
	case errors.Is(err, zk.ErrNoChildren):
		return "a part of the lock's path is another program's ephemeral node"
	case errors.Is(err, zk.ErrBadArguments):
		return "the servers refuse the path"
	case errors.Is(err, zk.ErrTooLarge) && errors.Is(err, zk.ErrNotSent):
		return "the name and the metadata are too long"
	case errors.Is(err, zk.ErrUnimplemented):
		return tooOld
	}
	return ""
}

const tooOld = "the servers are older than ZooKeeper 3.5"

// conflict refuses a name that is in use for another kind of lock.
func conflict(path string, n node) error {
	what := map[kind]string{mutexKind: "a mutex", readKind: "a read/write lock", writeKind: "a read/write lock", leaseKind: "a semaphore"}[n.kind]
	if what == "" {
		what = "a recipe that is not known here"
	}
	return fmt.Errorf("%w: %s is in use as %s: it has the node %s", driver.ErrInvalid, driver.Quote(path), what, n.name)
}

// overflow refuses a path whose numbers are used up.
func overflow(path string, n node) error {
	return fmt.Errorf("%w: ZooKeeper's sequence numbers are used up at %s (%s): delete that node when nobody holds or waits, so that they begin anew", driver.ErrInvalid, driver.Quote(path), n.key)
}
