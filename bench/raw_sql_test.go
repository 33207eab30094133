package bench

import (
	"context"
	"crypto/rand"
	"time"
)

// connections is how many a raw pool has: one for each goroutine of any scenario.
const connections = 64

// pause is how long raw locks that can't wait at the database sleep between two attempts.
const pause = time.Millisecond

// poll tries until it is granted.
func poll(ctx context.Context, try func() (bool, error)) error {
	for {
		ok, err := try()
		if ok || err != nil {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// sqlClient makes the mutexes of a pool of connections.
type sqlClient struct {
	newMutex func(name string) mutex
	end      func()
}

func (c sqlClient) mutex(name string) mutex { return c.newMutex(name) }
func (c sqlClient) close()                  { c.end() }

// rowMutex is one that has a row and says who it is.
type rowMutex struct {
	name, owner string
	ttl         time.Duration
}

func newRowMutex(name string, ttl time.Duration) rowMutex {
	return rowMutex{name: name, owner: rand.Text(), ttl: ttl}
}

// numbered is a mutex whose grants are numbered.
type numbered struct{ number uint64 }

func (n *numbered) fence() uint64 { return n.number }
