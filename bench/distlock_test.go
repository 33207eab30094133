package bench

import (
	"context"
	"strings"
	"time"

	"github.com/distlock/distlock"
	_ "github.com/distlock/distlock/backend/etcdlock"
	_ "github.com/distlock/distlock/backend/mysqllock"
	_ "github.com/distlock/distlock/backend/pglock"
	_ "github.com/distlock/distlock/backend/redislock"
	_ "github.com/distlock/distlock/backend/sqlitelock"
	_ "github.com/distlock/distlock/backend/zklock"
	"github.com/distlock/distlock/driver"
)

// openDistlockAt opens a URL of servers, so that the backend creates its own client. A busy machine is slow to open.
func openDistlockAt(scheme string) func(addr string, ttl time.Duration) (client, error) {
	return openDistlockWith(scheme, "timeout=30s")
}

// openDistlockIn opens a database URL without these parameters.
func openDistlockIn(params string) func(url string, ttl time.Duration) (client, error) {
	return openDistlockWith("", params+"&create=true")
}

func openDistlockWith(scheme, params string) func(addr string, ttl time.Duration) (client, error) {
	return func(addr string, ttl time.Duration) (client, error) {
		sep := "?"
		if strings.Contains(addr, sep) {
			sep = "&"
		}
		b, err := driver.Open(context.Background(), scheme+addr+sep+params)
		if err != nil {
			return nil, err
		}
		return newDistlock(b, distlock.Options{TTL: ttl}, func() {})
	}
}

var openDistlock = openDistlockAt("redis://")

// openDistlockFair puts all waiters in one queue, including the waiters of one process.
func openDistlockFair(addr string, ttl time.Duration) (client, error) {
	c, err := openDistlock(addr, ttl)
	if err != nil {
		return nil, err
	}
	c.(*distlockClient).options = []distlock.LockOption{distlock.Fair()}
	return c, nil
}

// openDistlockTurns disables the hand-off inside a process: each lock is requested from Redis.
func openDistlockTurns(addr string, ttl time.Duration) (client, error) {
	c, err := openDistlock(addr, ttl)
	if err != nil {
		return nil, err
	}
	c.(*distlockClient).options = []distlock.LockOption{distlock.WithoutHandoff()}
	return c, nil
}

func newDistlock(b driver.Backend, o distlock.Options, after func()) (client, error) {
	if o.TTL >= ttl {
		o.CallTimeout = ttl / 2 // a busy disk is slow to answer
	}
	locks, err := distlock.New(b, &o)
	if err != nil {
		return nil, err
	}
	return &distlockClient{locks: locks, after: after}, nil
}

type distlockClient struct {
	locks   *distlock.Client
	options []distlock.LockOption
	after   func()
}

func (c *distlockClient) mutex(name string) mutex {
	m := c.locks.Mutex(name, c.options...)
	return &distlockMutex{Mutex: m, acquire: m.Lock}
}

func (c *distlockClient) shared(name string) mutex {
	return &distlockMutex{acquire: c.locks.RWMutex(name).RLock}
}

func (c *distlockClient) sole(name string) mutex {
	return &distlockMutex{acquire: c.locks.RWMutex(name).Lock}
}

func (c *distlockClient) close() {
	c.locks.Close()
	c.after()
}

type distlockMutex struct {
	*distlock.Mutex // nil if it is one side of a read/write lock
	acquire         func(context.Context) (*distlock.Lease, error)
	lease           *distlock.Lease
}

func (m *distlockMutex) lock(ctx context.Context) (err error) {
	m.lease, err = m.acquire(ctx)
	return err
}

func (m *distlockMutex) unlock() error { return m.lease.Unlock(context.Background()) }
func (m *distlockMutex) fence() uint64 { return m.lease.Fence() }
