package bench

import (
	"context"
	"crypto/rand"
	"database/sql"
	"time"
)

// connections is the size of a raw pool, all open from the start: one for each goroutine of any
// scenario.
const connections = 16

// openAll opens all connections of a pool.
func openAll[C any](connect func(context.Context) (C, error), release func(C)) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var open []C
	for range connections {
		c, err := connect(ctx)
		if err != nil {
			return err
		}
		open = append(open, c)
	}
	for _, c := range open {
		release(c)
	}
	return nil
}

// newPool opens a pool of database/sql.
func newPool(driver, source string) (*sql.DB, error) {
	db, err := sql.Open(driver, source)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return db, openAll(db.Conn, func(c *sql.Conn) { c.Close() })
}

// pause is the time between two attempts of raw locks that can't wait in the database.
const pause = time.Millisecond

// poll retries until the lock is granted.
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

// sqlClient creates mutexes on a pool of connections.
type sqlClient struct {
	newMutex func(name string) mutex
	end      func()
}

func (c sqlClient) mutex(name string) mutex { return c.newMutex(name) }
func (c sqlClient) close()                  { c.end() }

// orFailing returns m, or a mutex that returns err.
func orFailing(m mutex, err error) mutex {
	if err != nil {
		return failing{err}
	}
	return m
}

// rowMutex is a mutex that has a row and a name for itself.
type rowMutex struct {
	name, owner string
	ttl         time.Duration
}

func newRowMutex(name string, ttl time.Duration) rowMutex {
	return rowMutex{name: name, owner: rand.Text(), ttl: ttl}
}

// numbered is the part of a mutex that numbers its grants.
type numbered struct{ number uint64 }

func (n *numbered) fence() uint64 { return n.number }
