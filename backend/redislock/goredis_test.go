package redislock

import (
	"context"
	"crypto/tls"
	"net"
	"path/filepath"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
)

// streaming provides credentials that may change while a client has them.
type streaming struct{ user, password string }

func (s streaming) Subscribe(auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	return auth.NewBasicCredentials(s.user, s.password), func() error { return nil }, nil
}

// A backend reaches what a go-redis client reaches, whatever way it was told: its locks are there. The program may close the client.
func TestGoRedisOptions(t *testing.T) {
	t.Parallel()
	acl := testserver.File(t, "users.acl", "user default off\nuser locker on >s3cret ~* &* +@all\n")
	socket := filepath.Join(t.TempDir(), "redis.sock")
	srv := testserver.Redis(t, "--aclfile", acl, "--unixsocket", socket)
	secure, roots := tlsServer(t, srv.Addr())
	for name, o := range map[string]redis.Options{
		"a password": {Username: "locker", Password: "s3cret"},
		"a provider": {CredentialsProvider: func() (string, string) { return "locker", "s3cret" }},
		"a provider with a context, before another": {
			CredentialsProvider:        func() (string, string) { return "nobody", "" },
			CredentialsProviderContext: func(context.Context) (string, string, error) { return "locker", "s3cret", nil },
		},
		"a stream of credentials": {StreamingCredentialsProvider: streaming{"locker", "s3cret"}},
		"a database":              {Username: "locker", Password: "s3cret", DB: 3},
		"a socket":                {Username: "locker", Password: "s3cret", Network: "unix", Addr: socket},
		"TLS":                     {Username: "locker", Password: "s3cret", Addr: secure, TLSConfig: &tls.Config{RootCAs: roots}},
		"a dialer": {Username: "locker", Password: "s3cret", Addr: "nowhere:1", Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, srv.Addr())
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if o.Addr == "" {
				o.Addr = srv.Addr()
			}
			o.MaintNotificationsConfig = noUpgrades
			c, another := redis.NewClient(&o), redis.NewClient(&o)
			t.Cleanup(func() { another.Close() })
			b, err := NewGoRedis(c, nil)
			b = opened(t, b, err)
			must.OK(t, c.Close())
			r := request("", driver.Exclusive)
			acquire(t, b, r)
			if n := must.Get(another.Exists(t.Context(), r.Name).Result())(t); n != 1 {
				t.Errorf("where the client looks there are %d locks", n)
			}
			release(t, b, r)
		})
	}
}
