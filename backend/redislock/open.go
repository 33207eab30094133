package redislock

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/redis/go-redis/v9"
)

func init() {
	open := func(ctx context.Context, u *url.URL) (driver.Backend, error) {
		b, err := openURL(ctx, u)
		if err != nil {
			return nil, err // and not a *Backend that is nil
		}
		return b, nil
	}
	driver.Register("redis", open)
	driver.Register("rediss", open)
	driver.Register("redis+unix", open)
}

// Open connects to the server of a URL; the package's comment tells its form. It
// returns when the server has answered, or ctx has ended, or the timeout passed. A
// wrong user or password, or a server that is too old, is ErrInvalid.
func Open(ctx context.Context, rawURL string) (*Backend, error) {
	u, err := url.Parse(rawURL)
	if err != nil || !strings.HasPrefix(u.Scheme, "redis") {
		return nil, fmt.Errorf("%w: want a URL such as redis://localhost:6379/0, with %%-encoded user and password", driver.ErrInvalid)
	}
	return openURL(ctx, u)
}

func openURL(ctx context.Context, u *url.URL) (*Backend, error) {
	server, opts, err := readURL(u)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, server.DialTimeout)
	defer cancel()
	c := single{ownGoRedis(server)}
	b, err := newBackend(c, opts)
	if err == nil {
		err = b.replicas.within(server.ReadTimeout)
	}
	if err == nil {
		err = checkVersion(ctx, c)
	}
	if err == nil && opts.Scripts == ScriptsAuto {
		err = b.checkScripts(ctx)
	}
	if err == nil {
		err = b.checkWait(ctx)
	}
	if err != nil {
		c.close()
		return nil, fmt.Errorf("redislock: open %s: %w", c.name(), explain(err))
	}
	return b, nil
}

// readURL says where the server is and how to use it.
func readURL(u *url.URL) (*redis.Options, *Options, error) {
	p := driver.NewParams(u)
	timeout := p.Duration("timeout", 5*time.Second)
	server := &redis.Options{
		Network: "tcp", Username: u.User.Username(),
		DialTimeout: timeout, ReadTimeout: timeout, WriteTimeout: timeout, PoolTimeout: timeout,
	}
	server.Password, _ = u.User.Password()
	opts := &Options{
		Layout: Layout(p.Choice("layout", string(String), string(Redisson))),
		Prefix: p.String("prefix", ""),

		Scripts:        Scripts(p.Choice("scripts", string(ScriptsAuto), string(ScriptsOff))),
		Replicas:       p.Int("replicas", 0, 0, maxReplicas),
		ReplicaTimeout: p.Duration("replica_timeout", 0),
	}
	read := readHost
	if u.Scheme == "redis+unix" {
		read = readSocket
		server.DB = p.Int("db", 0, 0, 1<<20)
	}
	if err := p.Err(); err != nil {
		return nil, nil, err
	}
	return server, opts, read(u, server)
}

func readSocket(u *url.URL, server *redis.Options) error {
	if u.Path == "" || u.Host != "" {
		return fmt.Errorf("%w: want redis+unix:///path/to/socket?db=0, with three slashes", driver.ErrInvalid)
	}
	server.Network, server.Addr = "unix", u.Path
	return nil
}

func readHost(u *url.URL, server *redis.Options) error {
	host, port := u.Hostname(), u.Port()
	if host == "" {
		host = "localhost"
	}
	if port == "" {
		port = "6379"
	}
	server.Addr = net.JoinHostPort(host, port)
	if u.Scheme == "rediss" {
		server.TLSConfig = &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	}
	if db := strings.Trim(u.Path, "/"); db != "" {
		n, err := strconv.Atoi(db)
		if err != nil || n < 0 {
			// It may be a piece of a password with a slash in it: it is not quoted.
			return fmt.Errorf("%w: the database is not a number, as in redis://localhost:6379/0; characters such as / # ? @ in a password must be %%-encoded", driver.ErrInvalid)
		}
		server.DB = n
	}
	return nil
}

func serverName(scheme, addr string, db int) string {
	return fmt.Sprintf("%s://%s/%d", scheme, addr, db)
}

// oldest is the first version with all that the scripts need.
const oldest = 6

// checkVersion refuses servers that are too old. HELLO came with 6.0; who may not ask
// is left to find out.
func checkVersion(ctx context.Context, c client) error {
	reply, err := c.do(ctx, "", []string{"HELLO"})
	re, is := asReply(err)
	switch {
	case is && re.isUnknown():
		return fmt.Errorf("%w: the server is older than Redis %d.0", driver.ErrInvalid, oldest)
	case is && re.is("NOPERM"):
		return nil
	case err != nil:
		return err
	}
	server, version := helloFields(reply)
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); server == "redis" && err == nil && n < oldest {
		return fmt.Errorf("%w: the server is Redis %s: want %d.0 or later", driver.ErrInvalid, version, oldest)
	}
	return nil
}

// checkScripts does without scripts if the server's user may not run them. That is asked
// with a script that no server has.
func (b *Backend) checkScripts(ctx context.Context) error {
	for _, question := range [][]string{{"EVALSHA", strings.Repeat("0", 40), "0"}, {"EVAL", "return 1", "0"}} {
		_, err := b.client.do(ctx, "", question)
		if deniesScripts(err) {
			return b.withoutScripts()
		}
		if _, is := asReply(err); err != nil && !is {
			return err
		}
	}
	return nil
}

// helloFields reads the answer of either protocol: a map or a flat list.
func helloFields(reply any) (server, version string) {
	fields, _ := reply.(map[string]any)
	if list, ok := reply.([]any); ok {
		fields = map[string]any{}
		for i := 0; i+1 < len(list); i += 2 {
			fields[text(list[i])] = list[i+1]
		}
	}
	return text(fields["server"]), text(fields["version"])
}
