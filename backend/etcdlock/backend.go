package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/netaddr"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Options configures a Backend. The zero value is the default.
type Options struct {
	// Prefix precedes every lock's name. It separates the locks of several applications. An
	// etcd role grants access to it.
	Prefix string

	// Name is the name of the cluster in Caps. It must be the same in every process. The
	// default is made from the client's endpoints.
	Name string
}

// Backend keeps locks in etcd. It is safe for concurrent use.
type Backend struct {
	client      *clientv3.Client
	prefix      string
	caps        driver.Caps
	turns       turns
	owners      owners
	leases      leases
	batcher     txnBatcher
	stream      *watchStream
	permitted   atomic.Bool // a server has let the user do something with keys
	closed      atomic.Bool
	once        sync.Once
	closeClient func() // nil: the client is the user's

	certificates *netaddr.Certificates // nil: no TLS, or the client is the user's
}

var (
	_ driver.Backend   = (*Backend)(nil)
	_ driver.Watcher   = (*Backend)(nil)
	_ driver.Inspector = (*Backend)(nil)
)

// Caps returns the backend's capabilities.
func (b *Backend) Caps() driver.Caps { return b.caps }

// Close ends the connection. It revokes the leases that nobody uses, and tries that for three seconds at most. It leaves
// the others: each hold and each place in the queue ends with its own TTL.
func (b *Backend) Close() error {
	b.once.Do(func() {
		b.closed.Store(true)
		b.owners.delayed.close()
		b.stream.close()
		b.batcher.close()
		b.leases.close()
		if b.closeClient != nil {
			b.closeClient()
		}
	})
	return nil
}

// folder returns the folder of a lock's keys.
func (b *Backend) folder(name string) string { return b.prefix + name + "/" }

// prepare refuses calls after Close, and calls whose context has ended: a request that was never
// sent can't land late. With the returned context, a server without a leader refuses
// requests at once, instead of keeping them for seconds.
func (b *Backend) prepare(ctx context.Context) (context.Context, error) {
	if b.closed.Load() {
		return ctx, fmt.Errorf("etcdlock: %w", driver.ErrClosed)
	}
	if err := ctx.Err(); err != nil {
		return ctx, fmt.Errorf("etcdlock: %w", err)
	}
	return clientv3.WithRequireLeader(ctx), nil
}

// fail adds the operation and advice for the user to an error.
func (b *Backend) fail(op, name string, err error) error {
	err = explain(err)
	if hint := b.certificates.Hint(errNoServer); hint != "" && etcdError(err) == (rpctypes.EtcdError{}) && !driver.Final(err) {
		err = fmt.Errorf("%w%s", err, hint)
	}
	if b.closed.Load() && !driver.Final(err) {
		err = fmt.Errorf("closed meanwhile: %w", err)
	}
	return fmt.Errorf("etcdlock: %s %s: %w", op, driver.Quote(name), err)
}

// errNoServer stands for an error of a connection of which only gRPC knows more.
var errNoServer = errors.New("no server has answered")

// failFirst is fail for a call that a program without the right permissions may begin with: it is told at once, and
// doesn't wait for somebody to grant them.
func (b *Backend) failFirst(op, name string, err error) error {
	if deniesUser(err) && !b.permitted.Load() {
		return fmt.Errorf("etcdlock: %s %s: %w: %w", op, driver.Quote(name), driver.ErrInvalid, explain(err))
	}
	return b.fail(op, name, err)
}

func errLostHold(name string) error {
	return fmt.Errorf("etcdlock: %s: %w", driver.Quote(name), driver.ErrLost)
}
