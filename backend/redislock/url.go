package redislock

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/netaddr"
	"github.com/redis/go-redis/v9"
)

// target is what a URL says: where servers are, and how to use them.
type target struct {
	scheme string   // without TLS's s
	addrs  []string // of servers, or of sentinels
	server *redis.Options
	opts   *Options

	master   string         // that the sentinels watch
	sentinel *redis.Options // how to reach them
}

// schemes are those that Open knows.
var schemes = []string{
	redisconn.SchemeServer, "rediss", redisconn.SchemeSocket, redisconn.SchemeSentinel, "rediss+sentinel", redisconn.SchemeCluster, "rediss+cluster",
}

// readURL says where the servers are and how to use them.
func readURL(u *url.URL) (*target, error) {
	plain, secure := strings.CutPrefix(u.Scheme, "rediss")
	t := &target{scheme: u.Scheme}
	if secure {
		t.scheme = redisconn.SchemeServer + plain
	}
	p := driver.NewParams(u)
	t.readParams(u, p)
	var errs []error
	if secure {
		errs = append(errs, t.readTLS(p))
	} else if err := netaddr.NoTLS(u, "rediss"); err != nil {
		return nil, err
	}
	errs = append(errs, p.Err(), t.readPlace(u))
	return t, errors.Join(errs...)
}

func (t *target) readParams(u *url.URL, p *driver.Params) {
	timeout := p.Duration("timeout", 5*time.Second)
	t.server = &redis.Options{
		Network: "tcp", Username: u.User.Username(),
		DialTimeout: timeout, ReadTimeout: timeout, WriteTimeout: timeout, PoolTimeout: timeout,
	}
	t.server.Password, _ = u.User.Password()
	t.opts = &Options{
		Layout:         Layout(p.Choice("layout", string(String), string(Redisson))),
		Prefix:         p.String("prefix", ""),
		PubSub:         PubSub(p.Choice("pubsub", string(PubSubAuto), string(PubSubOn), string(PubSubOff))),
		Scripts:        Scripts(p.Choice("scripts", string(ScriptsAuto), string(ScriptsOff))),
		Replicas:       p.Int("replicas", 0, 0, maxReplicas),
		ReplicaTimeout: p.Duration("replica_timeout", 0),
	}
	switch t.scheme {
	case redisconn.SchemeSocket:
		t.server.DB = p.Int("db", 0, 0, 1<<20)
	case redisconn.SchemeSentinel:
		o := *t.server
		o.Username, o.Password = p.String("sentinel_user", ""), p.String("sentinel_password", "")
		t.sentinel = &o
	}
}

// readTLS says how servers, and sentinels, are to be trusted.
func (t *target) readTLS(p *driver.Params) error {
	config, err := netaddr.TLS(p)
	t.server.TLSConfig = config
	if t.sentinel != nil && p.Bool("sentinel_tls", true) {
		t.sentinel.TLSConfig = config
	}
	return err
}

func (t *target) readPlace(u *url.URL) error {
	if t.scheme == redisconn.SchemeSocket {
		if u.Path == "" || u.Host != "" {
			return fmt.Errorf("%w: want redis+unix:///path/to/socket?db=0, with three slashes", driver.ErrInvalid)
		}
		t.server.Network, t.addrs = "unix", []string{u.Path}
		return nil
	}
	port := "6379"
	if t.scheme == redisconn.SchemeSentinel {
		port = "26379"
	}
	var err error
	if t.addrs, err = netaddr.Of(u, port); err != nil {
		return err
	}
	db := strings.Trim(u.Path, "/")
	switch t.scheme {
	case redisconn.SchemeServer:
		if len(t.addrs) > 1 {
			return fmt.Errorf("%w: one server has one host: want redis+sentinel:// or redis+cluster:// for several", driver.ErrInvalid)
		}
	case redisconn.SchemeSentinel:
		t.master, db, _ = strings.Cut(db, "/")
		if t.master == "" {
			return fmt.Errorf("%w: want the name of the master that the sentinels watch, as in redis+sentinel://host1,host2,host3/mymaster", driver.ErrInvalid)
		}
	}
	return t.readDB(db)
}

func (t *target) readDB(db string) error {
	if db == "" {
		return nil
	}
	n, err := strconv.Atoi(db)
	if err != nil || n < 0 {
		// It may be a piece of a password with a slash in it: it is not quoted.
		return fmt.Errorf("%w: the database is not a number, as in redis://localhost:6379/0; characters such as / # ? @ in a password must be %%-encoded", driver.ErrInvalid)
	}
	if t.scheme == redisconn.SchemeCluster && n != 0 {
		return fmt.Errorf("%w: a Redis Cluster has no database but 0", driver.ErrInvalid)
	}
	t.server.DB = n
	return nil
}

// to are the options for the server at an address.
func (t *target) to(o *redis.Options, addr string) *redis.Options {
	own := *o
	own.Addr = addr
	if o.TLSConfig != nil {
		own.TLSConfig = redisconn.CertifiedFor(o.TLSConfig, addr, t.addrs)
	}
	return &own
}

// name is the same in whatever order somebody wrote the hosts.
func (t *target) name() string {
	scheme := t.scheme
	if t.server.TLSConfig != nil {
		scheme = "rediss" + strings.TrimPrefix(scheme, "redis")
	}
	switch t.scheme {
	case redisconn.SchemeCluster:
		return scheme + "://" + netaddr.Listed(t.addrs)
	case redisconn.SchemeSentinel:
		return redisconn.ServerName(scheme, netaddr.Listed(t.addrs)+"/"+t.master, t.server.DB)
	}
	return redisconn.ServerName(scheme, t.addrs[0], t.server.DB)
}
