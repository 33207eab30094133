package redisconn

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/netaddr"
)

// FromGoRedis returns a client for the servers of a go-redis client, and how long that waits for an answer. It takes the
// addresses, the database, TLS or the dialer, and the logins, and makes connections of its own: the user's pool is not used.
// Clients of sentinels are ErrUnsupported: they do not say which master they have, nor when it is another one.
func FromGoRedis(c redis.UniversalClient) (*Client, time.Duration, error) {
	switch c := c.(type) {
	case *redis.Client:
		o := c.Options()
		if o.Addr == "FailoverClient" {
			return nil, 0, errSentinels
		}
		return NewSingle(nameOf(o), NewServer(optionsOf(o))), o.ReadTimeout, nil
	case *redis.ClusterClient:
		o := c.Options()
		if o.ClusterSlots != nil {
			return nil, 0, errSentinels
		}
		return clusterOf(o), o.ReadTimeout, nil
	case *redis.Ring:
		return nil, 0, fmt.Errorf("%w: a Ring: while its shards come and go a name has two places, and a lock could have two holders", driver.ErrUnsupported)
	}
	return nil, 0, fmt.Errorf("%w: a go-redis client of type %T", driver.ErrUnsupported, c)
}

var errSentinels = fmt.Errorf("%w: a go-redis client of sentinels does not say which master it has: want Open with redis+sentinel://host1,host2,host3/NAME", driver.ErrUnsupported)

func nameOf(o *redis.Options) string {
	scheme := SchemeServer
	switch {
	case o.Network == "unix":
		scheme = SchemeSocket
	case o.TLSConfig != nil:
		scheme = "rediss"
	}
	return ServerName(scheme, o.Addr, o.DB)
}

// optionsOf says how to reach a client's server. The dialer does TLS as well.
func optionsOf(o *redis.Options) Options {
	return Options{
		Network: o.Network, Addr: o.Addr, DB: o.DB, Timeout: max(o.ReadTimeout, 0), Dialer: o.Dialer,
		Credentials: credentials(o.StreamingCredentialsProvider, o.CredentialsProviderContext, o.CredentialsProvider, o.Username, o.Password),
	}
}

// clusterOf returns the client for the servers of a cluster client.
func clusterOf(o *redis.ClusterOptions) *Client {
	scheme, dial := SchemeCluster, o.Dialer
	if o.TLSConfig != nil {
		scheme = "rediss+cluster"
	}
	if dial == nil {
		dial = redis.NewDialer(&redis.Options{DialTimeout: o.DialTimeout, TLSConfig: o.TLSConfig})
	}
	login := credentials(o.StreamingCredentialsProvider, o.CredentialsProviderContext, o.CredentialsProvider, o.Username, o.Password)
	return NewCluster(scheme+"://"+netaddr.Listed(o.Addrs), o.Addrs, func(addr string) *Server {
		return NewServer(Options{Addr: addr, Timeout: max(o.ReadTimeout, 0), Dialer: dial, Credentials: login})
	})
}

// credentials returns the logins that go-redis would use: the first that there is.
func credentials(stream auth.StreamingCredentialsProvider, withContext netaddr.Credentials, provider func() (string, string), user, password string) netaddr.Credentials {
	switch {
	case stream != nil:
		return func(context.Context) (string, string, error) {
			now, stop, err := stream.Subscribe(nobody{})
			if err != nil {
				return "", "", err
			}
			defer stop()
			user, password := now.BasicAuth()
			return user, password, nil
		}
	case withContext != nil:
		return withContext
	case provider != nil:
		return func(context.Context) (string, string, error) {
			user, password := provider()
			return user, password, nil
		}
	}
	return func(context.Context) (string, string, error) { return user, password, nil }
}

// nobody is told of new credentials: each login asks for those of the moment.
type nobody struct{}

func (nobody) OnNext(auth.Credentials) {}
func (nobody) OnError(error)           {}
