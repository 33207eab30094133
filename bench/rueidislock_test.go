package bench

import (
	"context"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// openRueidislock uses rueidislock as its README recommends for a single server of this version: a
// majority of one, and tracking without loop.
func openRueidislock(addr string, ttl time.Duration) (client, error) {
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: []string{addr}},
		KeyValidity:    ttl,
		KeyMajority:    1,
		NoLoopTracking: true,
	})
	if err != nil {
		return nil, err
	}
	return rueidislockClient{l}, nil
}

type rueidislockClient struct{ rueidislock.Locker }

func (c rueidislockClient) mutex(name string) mutex {
	return &rueidislockMutex{locker: c.Locker, name: name}
}

func (c rueidislockClient) close() { c.Close() }

type rueidislockMutex struct {
	locker rueidislock.Locker
	name   string
	cancel context.CancelFunc
}

func (m *rueidislockMutex) lock(ctx context.Context) (err error) {
	_, m.cancel, err = m.locker.WithContext(ctx, m.name)
	return err
}

// unlock returns when the key is deleted.
func (m *rueidislockMutex) unlock() error {
	m.cancel()
	return nil
}
