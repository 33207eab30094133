package redislock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/netaddr"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

func init() {
	for _, scheme := range schemes {
		driver.Register(scheme, func(ctx context.Context, u *url.URL) (driver.Backend, error) { return openURL(ctx, u) })
	}
}

// Open connects to the servers of a URL; the package's comment tells its forms. It
// returns when the servers have answered, or ctx has ended, or the timeout passed. A
// wrong user or password, a server that is too old, and an address of another kind of
// server than the URL says, are ErrInvalid.
func Open(ctx context.Context, rawURL string) (*Backend, error) {
	u, err := driver.ParseURL(rawURL)
	if err != nil || !slices.Contains(schemes, u.Scheme) {
		return nil, fmt.Errorf("%w: want a URL such as redis://localhost:6379/0, with %%-encoded user and password", driver.ErrInvalid)
	}
	return openURL(ctx, u)
}

func openURL(ctx context.Context, u *url.URL) (*Backend, error) {
	t, err := readURL(u)
	if err != nil {
		return nil, err
	}
	opening, cancel := context.WithTimeout(ctx, t.server.DialTimeout)
	defer cancel()
	c := t.connect()
	b, err := t.open(opening, c)
	if err != nil {
		c.Close()
		if ctx.Err() == nil {
			err = t.tell(err)
		}
		return nil, fmt.Errorf("redislock: open %s: %w", c.Name(), err)
	}
	return b, nil
}

func (t *target) open(ctx context.Context, c redisconn.Client) (*Backend, error) {
	b, err := newPatient(c, t.opts, t.server.ReadTimeout)
	if err == nil {
		err = t.check(ctx, c)
	}
	if err == nil {
		_, err = b.pubsub.Detect(ctx, c)
	}
	if err == nil && t.opts.Scripts == ScriptsAuto {
		err = b.checkScripts(ctx)
	}
	if err == nil {
		err = b.checkWait(ctx)
	}
	return b, explain(err)
}

// tell puts what the network said into words for people. It is as unknown as before.
func (t *target) tell(err error) error {
	text, secure := err.Error(), t.server.TLSConfig != nil
	switch {
	case driver.Final(err):
		return err
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		// Either may end first: the context of the question, or the timeout of the connection.
		silence := "no answer within " + t.server.DialTimeout.String()
		text = strings.NewReplacer(context.DeadlineExceeded.Error(), silence, os.ErrDeadlineExceeded.Error(), silence).Replace(text)
		if secure {
			text += "; does the server speak TLS?"
		}
	case strings.Contains(text, "invalid reply"):
		text += ": this is no Redis server"
	case !secure && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)):
		text += "; does the server want TLS, as in rediss://?"
	}
	return redisconn.Reworded(text, err)
}

// connect makes the client; nothing is sent yet.
func (t *target) connect() redisconn.Client {
	switch t.scheme {
	case redisconn.SchemeCluster:
		return redisconn.NewCluster(t.name(),
			func(context.Context) ([]string, error) { return t.addrs, nil },
			func(_ context.Context, addr string) (redisconn.Server, error) {
				return redisconn.NewServer(t.to(t.server, addr)), nil
			})
	case redisconn.SchemeSentinel:
		return redisconn.NewSentinel(redisconn.SentinelOptions{Addrs: t.addrs, Master: t.master, Name: t.name(),
			DialSentinel: func(addr string) redisconn.Server { return redisconn.NewServer(t.to(t.sentinel, addr)) },
			DialMaster: func(addr string) redisconn.Server {
				o := t.to(t.server, addr)
				o.OnConnect = mastersOnly
				return redisconn.NewServer(o)
			}})
	}
	return redisconn.NewSingle(redisconn.NewServer(t.to(t.server, t.addrs[0])))
}

// mastersOnly refuses a server that has become a replica: what it knows may be old.
func mastersOnly(ctx context.Context, conn *redis.Conn) error {
	reply, err := conn.Do(ctx, "HELLO").Result()
	if err == nil && readHello(reply).replica() {
		return errReplica
	}
	return nil // who may not ask finds out when writing
}

var errReplica = &redisconn.ReplyError{Text: "READONLY this server is a replica"}

// oldest is the first version with all that the scripts need.
const oldest = 6

// check refuses servers that are too old, and those that are not what the URL says.
// HELLO came with 6.0; who may not ask is left to find out.
func (t *target) check(ctx context.Context, c redisconn.Client) error {
	s, err := c.At(ctx, "")
	if err != nil {
		return err
	}
	reply, err := s.Do(ctx, []string{"HELLO"})
	re, is := redisconn.AsReply(err)
	switch {
	case is && re.UnknownCommand():
		return fmt.Errorf("%w: the server is older than Redis %d.0", driver.ErrInvalid, oldest)
	case is && re.HasCode("NOPERM"):
		return nil
	case err != nil:
		return err
	}
	h := readHello(reply)
	if err := h.old(); err != nil {
		return err
	}
	return t.fits(h)
}

// fits checks that the server is what the URL says.
func (t *target) fits(h hello) error {
	switch {
	case h.mode == "sentinel":
		return fmt.Errorf("%w: this is a sentinel: want redis+sentinel://%s/NAME-OF-THE-MASTER", driver.ErrInvalid, netaddr.Listed(t.addrs))
	case h.mode == "cluster" && t.scheme != redisconn.SchemeCluster:
		return fmt.Errorf("%w: the server is part of a Redis Cluster: want redis+cluster://%s", driver.ErrInvalid, netaddr.Listed(t.addrs))
	case h.replica() && t.scheme == redisconn.SchemeServer:
		return fmt.Errorf("%w: the server is a replica: want its master, or a redis+sentinel:// URL, which finds it", driver.ErrInvalid)
	}
	return nil
}

// checkScripts does without scripts if the server's user may not run them. That is asked
// with a script that no server has.
func (b *Backend) checkScripts(ctx context.Context) error {
	for _, question := range [][]string{{"EVALSHA", strings.Repeat("0", 40), "0"}, {"EVAL", "return 1", "0"}} {
		_, err := b.client.Do(ctx, "", question)
		if deniesScripts(err) {
			return b.withoutScripts()
		}
		if _, is := redisconn.AsReply(err); err != nil && !is {
			return err
		}
	}
	return nil
}

// hello is what a server says of itself.
type hello struct{ server, version, mode, role string }

// readHello reads the answer of either protocol: a map or a flat list.
func readHello(reply any) hello {
	var h hello
	fields := map[string]*string{"server": &h.server, "version": &h.version, "mode": &h.mode, "role": &h.role}
	set := func(key, value any) {
		if f := fields[text(key)]; f != nil {
			*f = text(value)
		}
	}
	switch r := reply.(type) {
	case map[any]any:
		for key, value := range r {
			set(key, value)
		}
	case map[string]any:
		for key, value := range r {
			set(key, value)
		}
	case []any:
		for i := 0; i+1 < len(r); i += 2 {
			set(r[i], r[i+1])
		}
	}
	return h
}

func (h hello) replica() bool { return h.role == "replica" || h.role == "slave" }

func (h hello) old() error {
	major, _, _ := strings.Cut(h.version, ".")
	if n, err := strconv.Atoi(major); h.server == "redis" && err == nil && n < oldest {
		return fmt.Errorf("%w: the server is Redis %s: want %d.0 or later", driver.ErrInvalid, h.version, oldest)
	}
	return nil
}

// NewRueidis makes a backend of a rueidis client, which stays the caller's: Close
// leaves it open. opts may be nil. It may be of any mode: of one server, of Sentinel, or
// of a cluster.
//
// rueidis tells neither its database nor the name of Sentinel's master: see
// Options.Name.
func NewRueidis(c rueidis.Client, opts *Options) (*Backend, error) {
	if isNil(c) {
		return nil, fmt.Errorf("%w: want a rueidis client, not nil", driver.ErrInvalid)
	}
	return newBackend(redisconn.FromRueidis(c), opts)
}

// NewGoRedis makes a backend of a go-redis client, which stays the caller's: Close
// leaves it open. opts may be nil. The client is a *redis.Client, also one of
// NewFailoverClient, or a *redis.ClusterClient, also one of NewFailoverClusterClient.
//
// A *redis.Ring is ErrUnsupported: while its shards come and go two of them have the
// same name, and so may two holders.
//
// Commands that come while others are on their way are sent together, on one connection
// of the client's pool. They are not repeated, whatever the client's MaxRetries say: the
// core must know that an answer was lost. And they return when their context ends,
// also if the client was made without ContextTimeoutEnabled.
func NewGoRedis(c redis.UniversalClient, opts *Options) (*Backend, error) {
	if isNil(c) {
		return nil, fmt.Errorf("%w: want a go-redis client, not nil", driver.ErrInvalid)
	}
	client, timeout, err := redisconn.FromGoRedis(c)
	if err != nil {
		return nil, err
	}
	return newPatient(client, opts, timeout)
}

// newPatient makes a backend of a client that waits so long for an answer.
func newPatient(c redisconn.Client, opts *Options, timeout time.Duration) (*Backend, error) {
	b, err := newBackend(c, opts)
	if err == nil {
		err = b.replicas.within(timeout)
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

// isNil: an interface may hold a pointer that is nil.
func isNil(client any) bool {
	v := reflect.ValueOf(client)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}
