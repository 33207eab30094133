package etcdlock

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	listPageSize = 200 // keys that List reads at once
	maxLeases    = 64  // leases whose TTLs Inspect reads
)

// Inspect returns the holders and waiters of a lock. Holds of other programs are shown as
// mutex holds, with an Owner made from their key.
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Info, error) {
	info := driver.Info{Name: name}
	ctx, err := b.prepare(ctx)
	if err != nil {
		return info, err
	}
	q, _, err := b.readQueue(ctx, name)
	if err != nil {
		return info, b.failFirst("inspect", name, err)
	}
	if len(q) == 0 {
		return info, nil
	}
	left, err := b.timeLeft(ctx, q)
	if err != nil {
		return info, b.fail("inspect", name, err)
	}
	info.Mode, info.Limit = q[0].mode, q[0].Limit
	holders := q.holderCount()
	for i := range q {
		h := q[i].holder()
		if d, ok := left[q[i].lease]; ok {
			h.Left = d
		}
		if i < holders {
			info.Holders = append(info.Holders, h)
		} else {
			h.Fence = 0
			info.Waiters = append(info.Waiters, h)
		}
	}
	info.WaiterCount = len(info.Waiters)
	return info, nil
}

// timeLeft returns how long the leases of the keys still live.
func (b *Backend) timeLeft(ctx context.Context, q lockQueue) (map[clientv3.LeaseID]time.Duration, error) {
	left := map[clientv3.LeaseID]time.Duration{}
	for i := range q {
		id := q[i].lease
		if _, known := left[id]; known || id == 0 || len(left) == maxLeases {
			continue
		}
		resp, err := b.client.TimeToLive(ctx, id)
		if err != nil {
			return nil, err
		}
		left[id] = max(time.Duration(resp.TTL)*time.Second, 0)
		if !q[i].foreign && resp.TTL >= 0 { // the servers round down
			left[id] = min(left[id]+time.Second, time.Duration(resp.GrantedTTL)*time.Second-spareTTL)
		}
	}
	return left, nil
}

// List yields the names of locks that have keys with a lease. It reads page by page, and may miss
// names that are taken or left meanwhile.
func (b *Backend) List(ctx context.Context, prefix string, yield func(name string) bool) error {
	ctx, err := b.prepare(ctx)
	if err != nil {
		return err
	}
	from := b.prefix + prefix
	to := clientv3.GetPrefixRangeEnd(from)
	if from == "" {
		from, to = "\x00", "\x00"
	}
	seen := map[string]bool{}
	for {
		// Not WithKeysOnly: from etcd 3.7 on that leaves out the leases as well.
		resp, err := b.client.Get(ctx, from, clientv3.WithRange(to), clientv3.WithLimit(listPageSize))
		if err != nil {
			return b.failFirst("list", prefix, err)
		}
		for _, kv := range resp.Kvs {
			name, ok := b.lockName(string(kv.Key))
			if !ok || kv.Lease == 0 || seen[name] || !strings.HasPrefix(name, prefix) {
				continue
			}
			if seen[name] = true; !yield(name) {
				return nil
			}
		}
		if !resp.More {
			return nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// lockName returns the name of the lock that a key belongs to; false if there is none.
func (b *Backend) lockName(key string) (string, bool) {
	rest, ok := strings.CutPrefix(key, b.prefix)
	i := strings.LastIndexByte(rest, '/')
	if !ok || i < 1 {
		return "", false
	}
	_, err := strconv.ParseUint(rest[i+1:], 16, 64)
	return rest[:i], err == nil
}
