package redislock

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/distlock/distlock/backend/redislock/internal/layouts"
	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestMain(m *testing.M) { os.Exit(testserver.Run(m)) }

func TestConformance(t *testing.T) { conformEach(t, openers[0]) }

// The suite with a user's client. A URL uses go-redis too.
func TestLongConformance(t *testing.T) { conformEach(t, openers[1]) }

func conformEach(t *testing.T, o opener) {
	srv := testserver.SharedRedis(t)
	for _, layout := range []Layout{String, Redisson} {
		t.Run(o.name+"/"+string(layout), func(t *testing.T) {
			t.Parallel()
			conform(t, srv, o, Options{Layout: layout})
		})
	}
}

// isReserved says which names a single server refuses in either layout.
func isReserved(name string) bool { return layouts.Reserved(name) != "" }

// conform runs the suite, each connection through a proxy of its own.
func conform(t *testing.T, srv *testserver.RedisServer, o opener, opts Options) {
	opts.Name = "redis://proxied"
	var proxies sync.Map
	drivertest.Run(t, drivertest.Harness{
		Open: func(context.Context) (driver.Backend, error) {
			p := faultproxy.New(t, srv.Addr())
			b := o.open(t, p.Addr(), opts)
			proxies.Store(b, p)
			return b, nil
		},
		Cut: func(b driver.Backend) func() {
			p, _ := proxies.Load(b)
			p.(*faultproxy.Proxy).Silence()
			return p.(*faultproxy.Proxy).Pass
		},
		Refuses: isReserved,
	})
}

func conformLayouts(t *testing.T, srv *testserver.RedisServer) {
	for _, layout := range []Layout{String, Redisson} {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			conform(t, srv, openers[0], Options{Layout: layout})
		})
	}
}

// Redis 6.2 runs scripts a little differently, and words their errors otherwise.
func TestLongOldServer(t *testing.T) {
	srv := testserver.OldRedis(t)
	conformLayouts(t, srv)
	t.Run("another kind", func(t *testing.T) {
		b, c := openOwn(t, srv.Addr(), Options{}), raw(t, srv.Addr())
		r := request("", driver.Exclusive)
		c.RPush(t.Context(), r.Name, "text")
		refused(t, b, r, driver.ErrInvalid)
	})
}

func TestLongValkey(t *testing.T) {
	srv := testserver.Valkey(t)
	conformLayouts(t, srv)
	t.Run("without scripts", func(t *testing.T) {
		t.Parallel()
		conform(t, srv, openers[0], Options{Scripts: ScriptsOff})
	})
}

// Without scripts the commands of Redis 6.0 are enough.
func TestLongScriptlessConformanceOfRedis6(t *testing.T) {
	conform(t, testserver.OldRedis(t), opener{"6.0", openOldest}, Options{Scripts: ScriptsOff})
}

func openOldest(t testing.TB, addr string, opts Options) *Backend {
	b := openOwn(t, addr, opts)
	sendThrough(b, oldestClient{b.client})
	return b
}

// oldestClient refuses commands and options that Redis 6.0 does not have.
type oldestClient struct{ redisconn.Client }

func (c oldestClient) Do(ctx context.Context, key string, args []string) (any, error) {
	if err := newer(args); err != nil {
		return nil, err
	}
	return c.Client.Do(ctx, key, args)
}

func (c oldestClient) DoAll(ctx context.Context, key string, commands [][]string) []redisconn.Answer {
	return doOldest(commands, func(commands [][]string) []redisconn.Answer { return c.Client.DoAll(ctx, key, commands) })
}

func (c oldestClient) At(ctx context.Context, key string) (redisconn.Server, error) {
	at, err := c.Client.At(ctx, key)
	return oldestServer{at}, err
}

type oldestServer struct{ redisconn.Server }

func (s oldestServer) Dedicated(ctx context.Context) (redisconn.DedicatedConn, error) {
	c, err := s.Server.Dedicated(ctx)
	return oldestConn{c}, err
}

type oldestConn struct{ redisconn.DedicatedConn }

func (c oldestConn) DoAll(ctx context.Context, commands [][]string) []redisconn.Answer {
	return doOldest(commands, func(commands [][]string) []redisconn.Answer { return c.DedicatedConn.DoAll(ctx, commands) })
}

// doOldest sends commands. One that is newer than Redis 6.0 has no effect.
func doOldest(commands [][]string, do func([][]string) []redisconn.Answer) []redisconn.Answer {
	sent := slices.Clone(commands)
	for i, args := range sent {
		if newer(args) != nil {
			sent[i] = []string{"PING"}
		}
	}
	got := do(sent)
	for i, args := range commands {
		if err := newer(args); err != nil {
			got[i] = redisconn.Answer{Err: err}
		}
	}
	return got
}

// newer returns the error of Redis 6.0 if it does not have a command, or one of its options.
func newer(args []string) error {
	unknown := []string{"GETDEL", "GETEX", "COPY", "EXPIRETIME", "PEXPIRETIME", "SPUBLISH", "FCALL", "LMPOP"}
	options := map[string][]string{"SET": {"GET", "EXAT", "PXAT"}, "PEXPIRE": {"NX", "XX", "GT", "LT"}, "XADD": {"NOMKSTREAM", "MINID", "LIMIT"}}
	switch {
	case slices.Contains(unknown, args[0]):
		return &redisconn.ReplyError{Text: "ERR unknown command `" + args[0] + "`"}
	case slices.ContainsFunc(options[args[0]], func(o string) bool { return slices.Contains(args[min(3, len(args)):], o) }):
		return &redisconn.ReplyError{Text: "ERR syntax error"}
	case args[0] == "XADD" && strings.HasSuffix(args[min(4, len(args)-1)], "-*"):
		return &redisconn.ReplyError{Text: "ERR Invalid stream ID specified as stream command argument"}
	}
	return nil
}
