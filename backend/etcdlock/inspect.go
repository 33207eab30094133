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
	maxLeases    = 64  // leases that Inspect asks after
)

// Inspect tells who holds and who stands in line. Holds of other programs are shown as
// those of a mutex, with an Owner made of their key.
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Info, error) {
	info := driver.Info{Name: name}
	ctx, err := b.prepare(ctx)
	if err != nil {
		return info, err
	}
	all, err := b.readQueue(ctx, name)
	if err != nil {
		return info, b.fail("inspect", name, err)
	}
	if len(all) == 0 {
		return info, nil
	}
	left, err := b.timeLeft(ctx, all)
	if err != nil {
		return info, b.fail("inspect", name, err)
	}
	info.Mode, info.Limit = all[0].mode, all[0].Limit
	holding := all.holderCount()
	for i := range all {
		h := all[i].holder()
		if d, ok := left[all[i].lease]; ok {
			h.Left = d
		}
		if i < holding {
			info.Holders = append(info.Holders, h)
		} else {
			h.Fence = 0
			info.Waiters = append(info.Waiters, h)
		}
	}
	info.WaiterCount = len(info.Waiters)
	return info, nil
}

// timeLeft asks how long leases live on.
func (b *Backend) timeLeft(ctx context.Context, all lockQueue) (map[clientv3.LeaseID]time.Duration, error) {
	left := map[clientv3.LeaseID]time.Duration{}
	for i := range all {
		id := all[i].lease
		if _, known := left[id]; known || id == 0 || len(left) == maxLeases {
			continue
		}
		resp, err := b.client.TimeToLive(ctx, id)
		if err != nil {
			return nil, err
		}
		left[id] = max(time.Duration(resp.TTL), 0) * time.Second
	}
	return left, nil
}

// List yields the names below which there are keys with a lease. It reads page by page:
// names taken or left meanwhile may be missed.
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
		// Servers from 3.7 on that are asked for keys only leave out the leases as well.
		resp, err := b.client.Get(ctx, from, clientv3.WithRange(to), clientv3.WithLimit(listPageSize))
		if err != nil {
			return b.fail("list", prefix, err)
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

// lockName is the name of the lock that a key belongs to, if it is one's.
func (b *Backend) lockName(key string) (string, bool) {
	rest, ok := strings.CutPrefix(key, b.prefix)
	i := strings.LastIndexByte(rest, '/')
	if !ok || i < 1 {
		return "", false
	}
	first, _, _ := strings.Cut(rest[i+1:], "-")
	_, err := strconv.ParseUint(first, 16, 64)
	return rest[:i], err == nil
}
