package faultfuzz

import (
	"context"
	"errors"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	_ "github.com/distlock/distlock/backend/all"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/server"
)

func TestMain(m *testing.M) { os.Exit(testserver.Run(m)) }

// cases are the backends whose requests are held back until they do harm, if there is any to do.
var cases = map[string]func(t *testing.T) Case{
	"redis": redis(""), "redisson": redis("?layout=redisson"), "redis without scripts": redis("?scripts=off"), "redlock": redlock,
	"redis fair":       fair(redis(""), driver.Exclusive),
	"redis read/write": fair(redis(""), driver.Write, driver.Read, driver.Read),
	"redis permits":    fair(redis(""), driver.Counted),
	"redis all kinds":  fair(redis(""), driver.Exclusive, driver.Write, driver.Read, driver.Read, driver.Counted, driver.Counted),
	"etcd":             etcd, "etcd through two connections": roam(etcd),
	"zookeeper":            zooKeeper,
	"mysql row":            mariaDB("row", 0.03, false),
	"mysql row, all kinds": fair(mariaDB("row", 0.03, false), driver.Exclusive, driver.Write, driver.Read, driver.Read, driver.Counted, driver.Counted),
	"mysql session":        mariaDB("session", 0.02, true), "mysql forupdate": mariaDB("forupdate", 0.02, true),
	"postgres row":            postgres("strategy=row", 0.03, false),
	"postgres row, all kinds": fair(postgres("strategy=row", 0.03, false), driver.Exclusive, driver.Write, driver.Read, driver.Read, driver.Counted, driver.Counted),
	"postgres advisory":       postgres("strategy=advisory", 0.02, true),
	"served memory":           served(memory), "served redis": served(direct),
}

func TestLongLateCalls(t *testing.T) {
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			judged(t, c(t))
		})
	}
}

// at opens the URL that addresses are put into.
func at(url func(addrs string) string) func(context.Context, []string) (driver.Backend, error) {
	return func(ctx context.Context, addrs []string) (driver.Backend, error) {
		return driver.Open(ctx, url(strings.Join(addrs, ",")))
	}
}

func redis(query string) func(t *testing.T) Case {
	return func(t *testing.T) Case {
		return Case{
			Servers: []string{testserver.SharedRedis(t).Addr()},
			Text:    "late:",
			Open:    at(func(addr string) string { return "redis://" + addr + query }),
		}
	}
}

// fair has locks of these modes, for which those wait in line that are refused.
func fair(make func(t *testing.T) Case, modes ...driver.Mode) func(t *testing.T) Case {
	return func(t *testing.T) Case {
		c := make(t)
		c.Fair, c.Modes = true, modes
		return c
	}
}

func redlock(t *testing.T) Case {
	var servers []string
	for range 3 {
		servers = append(servers, testserver.Redis(t).Addr())
	}
	return Case{Servers: servers, Text: "late:", Open: at(func(addrs string) string { return "quorum+redis://" + addrs })}
}

// etcd is given the time to answer that a busy machine needs, as zooKeeper is.
func etcd(t *testing.T) Case {
	return Case{Servers: []string{testserver.SharedEtcd(t).Addr()}, Open: at(func(addr string) string { return "etcd://" + addr + "?timeout=2m" })}
}

func zooKeeper(t *testing.T) Case {
	return Case{
		Servers: []string{testserver.SharedZooKeeper(t).Addr()},
		Rate:    0.02,
		Open:    at(func(addr string) string { return "zk://" + addr + "?timeout=2m" }),
	}
}

func mariaDB(strategy string, rate float64, connected bool) func(t *testing.T) Case {
	return func(t *testing.T) Case {
		s := testserver.SharedMariaDB(t)
		url := s.Database(t) + "?create=true&strategy=" + strategy
		return Case{
			Servers: []string{s.Addr()}, Rate: rate, Connected: connected,
			Open: at(func(addr string) string { return strings.Replace(url, s.Addr(), addr, 1) }),
		}
	}
}

// postgres answers before its writes are on the disk: nothing crashes here.
func postgres(query string, rate float64, connected bool) func(t *testing.T) Case {
	return func(t *testing.T) Case {
		s := testserver.SharedPostgres(t)
		url := s.Database(t) + "&options=-csynchronous_commit=off&create=true&" + query
		return Case{
			Servers: []string{s.Addr()}, Rate: rate, Connected: connected,
			Open: at(func(addr string) string { return strings.Replace(url, s.Addr(), addr, 1) }),
		}
	}
}

// served has two servers before one store: a request may reach one when its client has gone on at the other.
func served(connect func(t *testing.T) func() driver.Backend) func(t *testing.T) Case {
	return func(t *testing.T) Case {
		dial := connect(t)
		return Case{
			Servers: []string{serve(t, dial()), serve(t, dial())},
			Text:    "late:",
			Open:    at(func(addrs string) string { return "http://" + addrs }),
		}
	}
}

func memory(*testing.T) func() driver.Backend {
	store := memlock.NewStore()
	return func() driver.Backend { return store.Connect() }
}

func direct(t *testing.T) func() driver.Backend {
	return func() driver.Backend { return mustOpen(t, testserver.SharedRedis(t).URL()) }
}

func mustOpen(t *testing.T, url string) driver.Backend {
	t.Helper()
	b := must.Get(driver.Open(context.Background(), url))(t)
	return b
}

// serve serves a backend until the test ends, and returns the server's address.
func serve(t *testing.T, b driver.Backend) (addr string) {
	t.Helper()
	s := must.Get(server.New(b, server.Options{}))(t)
	h := httptest.NewServer(s)
	t.Cleanup(func() {
		h.Close()
		b.Close()
	})
	return h.Listener.Addr().String()
}

// roam makes each call of a client through one of two connections, as a client of two servers does.
func roam(make func(t *testing.T) Case) func(t *testing.T) Case {
	return func(t *testing.T) Case {
		c := make(t)
		open := c.Open
		c.Open = func(ctx context.Context, addrs []string) (driver.Backend, error) {
			one, err := open(ctx, addrs)
			if err != nil {
				return nil, err
			}
			two, err := open(ctx, addrs)
			if err != nil {
				one.Close()
				return nil, err
			}
			return roaming{one, two, new(atomic.Int64)}, nil
		}
		return c
	}
}

type roaming struct {
	driver.Backend
	other driver.Backend
	calls *atomic.Int64
}

func (r roaming) any() driver.Backend {
	return []driver.Backend{r.Backend, r.other}[r.calls.Add(1)%7%2]
}

func (r roaming) Acquire(ctx context.Context, q driver.Request) (driver.Grant, error) {
	return r.any().Acquire(ctx, q)
}

func (r roaming) Renew(ctx context.Context, holds []driver.Hold) []error {
	return r.any().Renew(ctx, slices.Clone(holds))
}

func (r roaming) Release(ctx context.Context, h driver.Hold) error { return r.any().Release(ctx, h) }

func (r roaming) Close() error { return errors.Join(r.Backend.Close(), r.other.Close()) }
