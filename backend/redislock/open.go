package redislock

import (
	"context"
	"crypto/tls"
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

	"github.com/distlock/distlock/backend/redislock/internal/layouts"
	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/backend/redislock/internal/scriptless"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/netaddr"
	"github.com/redis/go-redis/v9"
)

func init() {
	for _, scheme := range schemes {
		driver.Register(scheme, func(ctx context.Context, u *url.URL) (driver.Backend, error) { return openURL(ctx, u, nil) })
	}
}

// Open connects to the servers of a URL in one of the forms in the package's comment. It
// returns when the servers have answered, ctx has ended, or the timeout has passed. It returns
// ErrInvalid for a wrong user or password, a server that is too old, and an address of another
// kind of server than the URL says.
func Open(ctx context.Context, rawURL string) (*Backend, error) { return OpenWith(ctx, rawURL, nil) }

// OpenOptions are what a URL can't say. A client of your own has options of its own for that.
type OpenOptions struct {
	// Credentials, if not nil, returns the user and the password of a login, in place of the URL's: for the tokens of a
	// cloud, or Vault. It is called for each connection to a server, and not to a sentinel. It must be safe for concurrent
	// use. Its context ends after the URL's timeout. If it returns an error that login fails, and is tried again.
	Credentials func(ctx context.Context) (user, password string, err error)
}

// OpenWith is Open with options; nil means none.
func OpenWith(ctx context.Context, rawURL string, opts *OpenOptions) (*Backend, error) {
	u, err := driver.ParseURL(rawURL)
	if err != nil || !slices.Contains(schemes, u.Scheme) {
		return nil, fmt.Errorf("%w: want a URL such as redis://localhost:6379/0, with %%-encoded user and password", driver.ErrInvalid)
	}
	return openURL(ctx, u, opts)
}

func openURL(ctx context.Context, u *url.URL, opts *OpenOptions) (*Backend, error) {
	t, err := parseURL(u)
	if err != nil {
		return nil, err
	}
	if opts != nil && opts.Credentials != nil {
		t.server.Credentials = opts.Credentials
	}
	began := time.Now()
	opening, cancel := context.WithTimeout(ctx, t.server.Timeout)
	defer cancel()
	c := t.connect()
	b, err := t.open(opening, c)
	if err != nil {
		c.Close()
		if ctx.Err() == nil {
			err = t.explainOpen(err, time.Since(began))
		}
		return nil, fmt.Errorf("redislock: open %s: %w", c.Name(), err)
	}
	return b, nil
}

func (t *urlTarget) open(ctx context.Context, c *redisconn.Client) (*Backend, error) {
	b, err := newBackend(c, t.opts, t.server.Timeout)
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
		err = b.replicas.ready(ctx, c)
	}
	if err == nil {
		b.certificates = t.certificates
		if b.mayLock(ctx) {
			b.markWorks()
		}
	}
	return b, redisconn.Final(redisconn.Explain(err), false)
}

// mayLock reports whether the server lets its user work with a lock's keys, by a release of nothing. One who may not may
// have other names, which the first attempt shows.
func (b *Backend) mayLock(ctx context.Context) bool {
	h := driver.Hold{Name: "distlock", Owner: driver.NewOwner(), Mode: driver.Exclusive}
	return b.check(h) == nil && !redisconn.IsRefusal(b.storage.Release(ctx, h))
}

// explainOpen puts the network's error into words for people.
func (t *urlTarget) explainOpen(err error, took time.Duration) error {
	text, secure := err.Error(), t.certificates != nil
	switch {
	case driver.Final(err):
		return err
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		// Either may end first: the context of the question, or the timeout of the connection.
		silence := "no answer within " + min(took.Round(time.Millisecond), t.server.Timeout).String()
		text = strings.NewReplacer(context.DeadlineExceeded.Error(), silence, os.ErrDeadlineExceeded.Error(), silence).Replace(text)
	case strings.Contains(text, "invalid reply"):
		text += ": this is no Redis server"
	case !secure && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)):
		text += "; does the server want TLS, as in rediss://?"
	}
	text += t.certificates.Hint(err)
	return redisconn.Reworded(text, err)
}

// connect makes the client, and sends nothing yet.
func (t *urlTarget) connect() *redisconn.Client {
	switch t.scheme {
	case redisconn.SchemeCluster:
		return redisconn.NewCluster(t.name(), t.addrs, func(addr string) *redisconn.Server {
			return redisconn.NewServer(t.optionsFor(t.server, t.certificates, addr))
		})
	case redisconn.SchemeSentinel:
		return redisconn.NewSentinel(redisconn.SentinelOptions{Addrs: t.addrs, Master: t.master, Name: t.name(),
			DialSentinel: func(addr string) *redisconn.Server {
				return redisconn.NewServer(t.optionsFor(t.sentinel, t.sentinelCertificates, addr))
			},
			DialMaster: func(addr string) *redisconn.Server {
				o := t.optionsFor(t.server, t.certificates, addr)
				o.Check = mastersOnly
				return redisconn.NewServer(o)
			}})
	}
	return redisconn.NewSingle(t.name(), redisconn.NewServer(t.optionsFor(t.server, t.certificates, t.addrs[0])))
}

// mastersOnly refuses a server that has become a replica, whose data may be old.
func mastersOnly(do func(words ...string) (any, error)) error {
	reply, err := do("HELLO")
	if err == nil && parseHello(reply).replica() {
		return errReplica
	}
	return nil // a user who may not ask finds out when writing
}

var errReplica = &redisconn.ReplyError{Text: "READONLY this server is a replica"}

// oldest is the first version with XADD's NOMKSTREAM.
const oldestMajor, oldestMinor = 6, 2

// check refuses servers that are too old, or not of the kind that the URL says.
// HELLO came with 6.0. A user who may not send it finds out later.
func (t *urlTarget) check(ctx context.Context, c *redisconn.Client) error {
	s, err := c.At(ctx, "")
	if err != nil {
		return err
	}
	reply, err := s.Do(ctx, []string{"HELLO"})
	re, is := redisconn.AsReply(err)
	switch {
	case is && (re.UnknownCommand() || strings.Contains(re.Text, "arguments for 'auth'")):
		return fmt.Errorf("%w: the server is older than Redis %d.%d", driver.ErrInvalid, oldestMajor, oldestMinor)
	case is && re.HasCode("NOPERM"):
		return nil
	case err != nil:
		return err
	}
	h := parseHello(reply)
	if err := h.tooOld(); err != nil {
		return err
	}
	return t.matches(h)
}

// matches returns an error unless the server is of the kind that the URL says.
func (t *urlTarget) matches(h helloReply) error {
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

// checkScripts chooses the storage without scripts if the server's user may not run them. It
// sends the hash of a script that no server has, so nothing is run.
func (b *Backend) checkScripts(ctx context.Context) error {
	questions := [][]string{{"EVALSHA", strings.Repeat("0", 40), "0"}, {"EVAL", "return 1", "0"}}
	for _, answer := range b.client.DoAll(ctx, "", questions) {
		if deniesScripts(answer.Err) {
			return b.withoutScripts()
		}
		if _, is := redisconn.AsReply(answer.Err); answer.Err != nil && !is {
			return answer.Err
		}
	}
	return nil
}

// helloReply has parts of a server's answer to HELLO, which is a list of keys and values.
type helloReply struct{ server, version, mode, role string }

func parseHello(reply any) helloReply {
	fields, list := map[string]string{}, redisconn.Texts(reply)
	for i := 0; i+1 < len(list); i += 2 {
		fields[list[i]] = list[i+1]
	}
	return helloReply{fields["server"], fields["version"], fields["mode"], fields["role"]}
}

func (h helloReply) replica() bool { return h.role == "replica" || h.role == "slave" }

func (h helloReply) tooOld() error {
	var major, minor int
	if n, _ := fmt.Sscanf(h.version, "%d.%d", &major, &minor); h.server != "redis" || n < 2 {
		return nil
	}
	if major < oldestMajor || major == oldestMajor && minor < oldestMinor {
		return fmt.Errorf("%w: the server is Redis %s: want %d.%d or later", driver.ErrInvalid, h.version, oldestMajor, oldestMinor)
	}
	return nil
}

// NewGoRedis returns a backend for the servers of a go-redis client: a *redis.Client of one server, or a *redis.ClusterClient.
// opts may be nil.
//
// The backend takes the client's addresses, database, dialer, TLS and credentials, and makes connections of its own, since
// it must know what a server may have received. The client's pool, hooks, Limiter and OnConnect are not used, and the client may be
// closed.
//
// ErrUnsupported are clients of sentinels, which do not say who is master: use Open with redis+sentinel://. So is a *redis.Ring:
// while its shards come and go, a name has two places, and a lock may have two holders.
func NewGoRedis(c redis.UniversalClient, opts *Options) (*Backend, error) {
	if isNil(c) {
		return nil, fmt.Errorf("%w: want a go-redis client, not nil", driver.ErrInvalid)
	}
	client, timeout, err := redisconn.FromGoRedis(c)
	if err != nil {
		return nil, err
	}
	return newBackend(client, opts, timeout)
}

// isNil reports whether a client is nil, or an interface that holds a nil pointer.
func isNil(client any) bool {
	v := reflect.ValueOf(client)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

// urlTarget is a parsed URL: the addresses of servers, and how to use them.
type urlTarget struct {
	scheme string   // without TLS's s
	addrs  []string // of servers, or of sentinels
	server redisconn.Options
	opts   *Options

	master   string            // that the sentinels watch
	sentinel redisconn.Options // how to reach them

	certificates, sentinelCertificates *netaddr.Certificates // nil: no TLS
}

// schemes are the schemes of URLs that Open knows.
var schemes = []string{
	redisconn.SchemeServer, "rediss", redisconn.SchemeSocket, redisconn.SchemeSentinel, "rediss+sentinel", redisconn.SchemeCluster, "rediss+cluster",
}

// parseURL reads where the servers are and how to use them.
func parseURL(u *url.URL) (*urlTarget, error) {
	plain, secure := strings.CutPrefix(u.Scheme, "rediss")
	t := &urlTarget{scheme: u.Scheme}
	if secure {
		t.scheme = redisconn.SchemeServer + plain
	}
	p := driver.NewParams(u)
	t.parseParams(p)
	errs := []error{t.parseLogin(u, p)}
	if secure {
		errs = append(errs, t.parseTLS(p))
	} else if err := netaddr.NoTLS(u, "rediss"); err != nil {
		return nil, err
	}
	errs = append(errs, p.Err(), t.parseAddrs(u))
	return t, errors.Join(errs...)
}

func (t *urlTarget) parseParams(p *driver.Params) {
	t.server.Timeout = p.Duration("timeout", 5*time.Second)
	t.opts = &Options{
		Layout:         Layout(p.Choice("layout", string(String), string(Redisson))),
		Prefix:         p.String("prefix", ""),
		PubSub:         PubSub(p.Choice("pubsub", string(PubSubAuto), string(PubSubOn), string(PubSubOff))),
		Scripts:        Scripts(p.Choice("scripts", string(ScriptsAuto), string(ScriptsOff))),
		Replicas:       p.Int("replicas", 0, 0, maxReplicas),
		ReplicaTimeout: p.Duration("replica_timeout", 0),
	}
	t.sentinel.Timeout = t.server.Timeout
	if t.scheme == redisconn.SchemeSocket {
		t.server.DB = p.Int("db", 0, 0, 1<<20)
	}
}

// parseLogin reads who logs in: at the servers, and at the sentinels, which have users of their own.
func (t *urlTarget) parseLogin(u *url.URL, p *driver.Params) error {
	login, err := netaddr.Login(u, p)
	t.server.Credentials = login
	if t.scheme != redisconn.SchemeSentinel {
		return err
	}
	user, password, path := p.String("sentinel_user", ""), p.String("sentinel_password", ""), p.String("sentinel_password_file", "")
	t.sentinel.Credentials = func(context.Context) (string, string, error) { return user, password, nil }
	switch {
	case path != "" && password != "":
		return errors.Join(err, fmt.Errorf("%w: the parameters sentinel_password and sentinel_password_file: want one of them", driver.ErrInvalid))
	case path == "":
		return err
	}
	read := netaddr.FileCredentials(user, path)
	t.sentinel.Credentials = read
	if _, _, unread := read(context.Background()); unread != nil {
		err = errors.Join(err, fmt.Errorf("%w: for the sentinels: %w", driver.ErrInvalid, unread))
	}
	return err
}

// parseTLS reads how to trust servers and sentinels.
func (t *urlTarget) parseTLS(p *driver.Params) error {
	var err error
	t.certificates, err = netaddr.ReadCertificates(p)
	if t.scheme == redisconn.SchemeSentinel && p.Bool("sentinel_tls", true) {
		t.sentinelCertificates = t.certificates
	}
	return err
}

func (t *urlTarget) parseAddrs(u *url.URL) error {
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
	return t.parseDB(db)
}

func (t *urlTarget) parseDB(db string) error {
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

// optionsFor returns the options for the server at an address. Each connection reads the certificates again.
func (t *urlTarget) optionsFor(o redisconn.Options, c *netaddr.Certificates, addr string) redisconn.Options {
	o.Addr = addr
	if c != nil {
		o.TLS = func() *tls.Config { return redisconn.CertifiedFor(c.Config(), addr, t.addrs) }
	}
	return o
}

// name returns the same name for any order of the hosts.
func (t *urlTarget) name() string {
	scheme := t.scheme
	if t.certificates != nil {
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

// keySpace tells the locks of a server apart that have other keys or another layout, and so do not exclude each other.
func keySpace(o *Options) string {
	var parts []string
	if o.Layout != "" && o.Layout != String {
		parts = append(parts, "layout="+string(o.Layout))
	}
	if o.Prefix != "" {
		parts = append(parts, "prefix="+strings.ToValidUTF8(o.Prefix, "\ufffd"))
	}
	if len(parts) == 0 {
		return ""
	}
	return "?" + strings.Join(parts, "&")
}

// newBackend returns a backend on a client that waits for an answer for so long; 0: not known.
func newBackend(c *redisconn.Client, opts *Options, timeout time.Duration) (*Backend, error) {
	if opts == nil {
		opts = &Options{}
	}
	mode, err := opts.PubSub.mode(c)
	if err != nil {
		return nil, err
	}
	b := &Backend{client: c, pubsub: redisconn.NewPubSub(mode), caps: driver.Caps{
		Name: opts.Name, Modes: driver.AllModes,
		Fence: true, Floor: true, Downgrade: true, Detached: true,
		Queueing: driver.QueueOnRequest,
		MinTTL:   10 * time.Millisecond,
		Poll:     time.Second / 16, // a user who may not subscribe comes to one attempt a second
	}}
	b.abandoned.ctx, b.abandoned.cancel = context.WithCancel(context.Background())
	b.subscriptions = redisconn.NewSubscriptions(c, b.pubsub)
	b.releases = newReleaseNotifier(b.subscriptions)
	if b.caps.Name == "" {
		b.caps.Name = c.Name() + keySpace(opts)
	}
	if b.replicas, err = newReplicas(opts, timeout); err != nil {
		return nil, err
	}
	if b.layout, err = newLayout(opts, c.Slotted()); err != nil {
		return nil, err
	}
	if b.layout.Redisson {
		b.caps.QueuedModes = driver.Modes(driver.Exclusive)
	}
	switch {
	case opts.Scripts == ScriptsOff:
		if err := b.withoutScripts(); err != nil {
			return nil, err
		}
	case opts.Scripts != "" && opts.Scripts != ScriptsAuto:
		return nil, fmt.Errorf("%w: scripts %q: want %q or %q", driver.ErrInvalid, opts.Scripts, ScriptsAuto, ScriptsOff)
	case b.replicas.need > 0:
		b.storage = newAcknowledged(b)
	case b.layout.Redisson:
		b.storage = newScripted(b)
	default:
		b.storage = newUncontended(b)
	}
	return b, nil
}

func newLayout(o *Options, strict bool) (*layouts.Layout, error) {
	layout := layouts.String
	switch o.Layout {
	case "", String:
	case Redisson:
		layout = layouts.Redisson
	default:
		return nil, fmt.Errorf("%w: layout %q: want %q or %q", driver.ErrInvalid, o.Layout, String, Redisson)
	}
	l := layout(o.Prefix, strict)
	if err := l.CheckPrefix(); err != nil {
		return nil, fmt.Errorf("prefix: %w", err)
	}
	return l, nil
}

// withoutScripts lets a new backend use no scripts.
func (b *Backend) withoutScripts() error {
	if b.layout.Redisson {
		return fmt.Errorf("%w: the layout %q needs scripts, and they are off or forbidden to the server's user", driver.ErrUnsupported, Redisson)
	}
	if b.replicas.need > 0 {
		return fmt.Errorf("%w: acknowledgement by replicas needs scripts, and they are off or forbidden to the server's user", driver.ErrUnsupported)
	}
	b.storage = scriptless.New(b.client, b.pubsub, b.layout)
	b.caps.Modes, b.caps.Downgrade = driver.Modes(driver.Exclusive), false
	b.caps.Queueing = driver.QueueNever
	return nil
}
