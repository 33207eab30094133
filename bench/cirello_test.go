package bench

import (
	"context"
	"time"

	"cirello.io/pglock"
	_ "github.com/lib/pq" // the driver that cirello.io/pglock requires
)

// openCirello uses cirello.io/pglock like its README. A refused client waits for the whole lease, even
// if the lock is released earlier.
func openCirello(lease time.Duration) func(string, time.Duration) (client, error) {
	return func(url string, _ time.Duration) (client, error) {
		db, err := newPool("postgres", url)
		if err != nil {
			return nil, err
		}
		c, err := pglock.New(db, pglock.WithLeaseDuration(lease), pglock.WithHeartbeatFrequency(lease/4))
		if err != nil {
			return nil, err
		}
		newMutex := func(name string) mutex { return &cirelloMutex{c: c, name: name} }
		return sqlClient{newMutex, func() { db.Close() }}, c.TryCreateTable()
	}
}

type cirelloMutex struct {
	c    *pglock.Client
	name string
	held *pglock.Lock
}

func (m *cirelloMutex) lock(ctx context.Context) (err error) {
	m.held, err = m.c.AcquireContext(ctx, m.name)
	return err
}

func (m *cirelloMutex) unlock() error { return m.c.Release(m.held) }
