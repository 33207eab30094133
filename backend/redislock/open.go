package redislock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
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

// target is what a URL says.
type target struct {
	network, addr  string
	user, password string
	db             int
	tls            *tls.Config
	timeout        time.Duration
	options        Options
}

func openURL(ctx context.Context, u *url.URL) (*Backend, error) {
	t, err := readURL(u)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	c := &wire{target: t}
	if err := checkVersion(ctx, c); err != nil {
		c.close()
		return nil, t.openError(err)
	}
	b, err := newBackend(c, &t.options)
	if err != nil {
		c.close()
	}
	return b, err
}

func readURL(u *url.URL) (*target, error) {
	p := driver.NewParams(u)
	t := &target{
		timeout: p.Duration("timeout", 5*time.Second),
		options: Options{
			Layout: Layout(p.Choice("layout", string(String), string(Redisson))),
			Prefix: p.String("prefix", ""),
		},
	}
	t.user = u.User.Username()
	t.password, _ = u.User.Password()
	if u.Scheme == "redis+unix" {
		t.network, t.addr = "unix", u.Path
		t.db = p.Int("db", 0, 0, 1<<20)
	} else {
		t.network = "tcp"
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	if t.network == "unix" {
		if t.addr == "" || u.Host != "" {
			return nil, fmt.Errorf("%w: want redis+unix:///path/to/socket?db=0, with three slashes", driver.ErrInvalid)
		}
		return t, nil
	}
	return t, t.readHost(u)
}

func (t *target) readHost(u *url.URL) error {
	host, port := u.Hostname(), u.Port()
	if host == "" {
		host = "localhost"
	}
	if port == "" {
		port = "6379"
	}
	t.addr = net.JoinHostPort(host, port)
	if u.Scheme == "rediss" {
		t.tls = &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	}
	if db := strings.Trim(u.Path, "/"); db != "" {
		n, err := strconv.Atoi(db)
		if err != nil || n < 0 {
			return fmt.Errorf("%w: database %q: want a number, as in redis://%s/0", driver.ErrInvalid, db, t.addr)
		}
		t.db = n
	}
	return nil
}

// name is the server without credentials.
func (t *target) name() string {
	switch {
	case t.network == "unix":
		return serverName("redis+unix", t.addr, t.db)
	case t.tls != nil:
		return serverName("rediss", t.addr, t.db)
	}
	return serverName("redis", t.addr, t.db)
}

func serverName(scheme, addr string, db int) string {
	return fmt.Sprintf("%s://%s/%d", scheme, addr, db)
}

// openError says what went wrong, and never quotes a password.
func (t *target) openError(err error) error {
	return fmt.Errorf("redislock: open %s: %w", t.name(), explain(err))
}

// oldest is the first version with all that the scripts need.
const oldest = 6

// checkVersion refuses servers that are too old. HELLO came with 6.0; who may not ask
// is left to find out.
func checkVersion(ctx context.Context, c client) error {
	reply, err := c.do(ctx, []string{"HELLO"})
	if re := (*replyError)(nil); errors.As(err, &re) {
		if re.is("ERR") && strings.Contains(re.text, "unknown command") {
			return fmt.Errorf("%w: the server is older than Redis %d.0", driver.ErrInvalid, oldest)
		}
		if re.is("NOPERM") {
			return nil
		}
	}
	if err != nil {
		return err
	}
	server, version := helloFields(reply)
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); server == "redis" && err == nil && n < oldest {
		return fmt.Errorf("%w: the server is Redis %s: want %d.0 or later", driver.ErrInvalid, version, oldest)
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
