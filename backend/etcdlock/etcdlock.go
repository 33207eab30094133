package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
)

// closeTimeout bounds what Close asks of the servers: to end the leases.
const closeTimeout = 3 * time.Second

// maxTTL is the longest that etcd gives a lease.
const maxTTL = 9_000_000_000 * time.Second

// Options are how a Backend uses etcd. The zero value is the default.
type Options struct {
	// Prefix is put before every lock's name, to keep the locks of several applications
	// apart, and to have one thing to give an etcd role access to.
	Prefix string

	// Name is what Caps call the cluster; it must be the same in every process. The
	// default is made of the client's endpoints.
	Name string
}

// Backend keeps locks in etcd. It is safe for concurrent use.
type Backend struct {
	client      *clientv3.Client
	prefix      string
	caps        driver.Caps
	owners      owners
	leases      leases
	tombstones  tombstones
	batcher     txnBatcher
	stream      *watchStream
	delayed     delayedWatches
	closed      atomic.Bool
	once        sync.Once
	closeClient func() // of a client that is the backend's own
}

var (
	_ driver.Backend   = (*Backend)(nil)
	_ driver.Watcher   = (*Backend)(nil)
	_ driver.Inspector = (*Backend)(nil)
)

// newBackend makes a backend that asks the servers nothing yet.
func newBackend(client *clientv3.Client, opts *Options) (*Backend, error) {
	if opts == nil {
		opts = &Options{}
	}
	b := &Backend{client: client, prefix: opts.Prefix}
	b.caps = driver.Caps{
		Name: opts.Name, Modes: driver.AllModes,
		Fence: true, Session: true, Fixed: true, Downgrade: true,
		Queueing: driver.QueueAlways, MinTTL: time.Second, MaxTTL: maxTTL,
	}
	if b.caps.Name == "" {
		b.caps.Name = clusterName(addrsOf(client), b.prefix)
	}
	b.owners.init()
	b.leases.init(client, b.leaseEnded)
	b.tombstones.init(b.deleteKeys)
	b.delayed.init(b.watchHolds)
	b.batcher.init(client)
	b.stream = newWatchStream(client.ActiveConnection)
	return b, nil
}

// Caps says what the backend can do.
func (b *Backend) Caps() driver.Caps { return b.caps }

// Close ends the session: it revokes the leases, and so lets the servers delete the keys
// of all holds and places. Without an answer within three seconds they end with their TTL.
func (b *Backend) Close() error {
	b.once.Do(func() {
		b.closed.Store(true)
		b.delayed.close()
		b.tombstones.close()
		b.stream.close()
		b.batcher.close()
		b.leases.close()
		if b.closeClient != nil {
			b.closeClient()
		}
	})
	return nil
}

// prepare refuses calls after Close, and those that nobody waits for any more: what was
// never sent can't land late. What a call asks with the context that it returns is refused
// at once by a server that has no leader; else that would keep it for seconds.
func (b *Backend) prepare(ctx context.Context) (context.Context, error) {
	if b.closed.Load() {
		return ctx, fmt.Errorf("etcdlock: %w", driver.ErrClosed)
	}
	if err := ctx.Err(); err != nil {
		return ctx, fmt.Errorf("etcdlock: %w", err)
	}
	return clientv3.WithRequireLeader(ctx), nil
}

// validRequest refuses what could never be granted.
func validRequest(r *driver.Request) error {
	switch {
	case r.Name == "" || r.Owner == "":
		return fmt.Errorf("%w: a request needs a name and an owner", driver.ErrInvalid)
	case strings.ContainsRune(r.Owner, '/'):
		return fmt.Errorf("%w: owner %q: want one without a slash", driver.ErrInvalid, r.Owner)
	case r.Mode == 0 || !driver.AllModes.Has(r.Mode):
		return fmt.Errorf("%w: mode %v", driver.ErrUnsupported, r.Mode)
	case r.Mode == driver.Counted && r.Limit < 1:
		return fmt.Errorf("%w: a semaphore of %d permits: want at least 1", driver.ErrInvalid, r.Limit)
	}
	return validTTL(r.TTL)
}

func validTTL(ttl time.Duration) error {
	if ttl <= 0 || ttl > maxTTL {
		return fmt.Errorf("%w: TTL %v: want more than 0 and at most %v", driver.ErrInvalid, ttl, maxTTL)
	}
	return nil
}

// fail says what was tried, and what the user can do about it.
func (b *Backend) fail(op, name string, err error) error {
	err = explain(err)
	if b.closed.Load() && !driver.Final(err) {
		err = fmt.Errorf("closed meanwhile: %w", err)
	}
	return fmt.Errorf("etcdlock: %s %s: %w", op, driver.Quote(name), err)
}

// outcomeUnknown reports whether what a call with this error asked for may have been done, or may
// still be.
func outcomeUnknown(err error) bool {
	refused := rpctypes.EtcdError{}
	switch {
	case !errors.As(err, &refused):
		return !tooLargeToSend(err)
	case noLeader(err):
		return false // see begin
	}
	switch refused.Code() {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unknown, codes.Internal:
		return true
	}
	return false
}

func errLostHold(name string) error {
	return fmt.Errorf("etcdlock: %s: %w", driver.Quote(name), driver.ErrLost)
}
