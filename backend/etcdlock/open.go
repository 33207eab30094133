package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/netaddr"
	"github.com/distlock/distlock/internal/wait"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// schemes has the URL schemes that Open accepts.
var schemes = []string{"etcd", "etcds"}

const (
	defaultPort    = "2379"
	defaultTimeout = 5 * time.Second
)

func init() {
	for _, scheme := range schemes {
		driver.Register(scheme, func(ctx context.Context, u *url.URL) (driver.Backend, error) { return openURL(ctx, u, nil) })
	}
}

// Open connects to the servers of a URL, whose forms the package documentation lists. It returns
// once a server with a leader has answered, or none can, or ctx or the timeout has ended. A wrong
// user or password, and servers that are too old, are ErrInvalid. Permissions for keys are not
// checked before the first lock.
func Open(ctx context.Context, rawURL string) (*Backend, error) { return OpenWith(ctx, rawURL, nil) }

// OpenOptions configures what no URL can say.
type OpenOptions struct {
	// Credentials, if not nil, returns the user and the password of a login, in place of the URL's: for the tokens of a
	// cloud, or Vault. It is called for each login, from several goroutines. If it returns an error that login fails, and
	// is tried again.
	Credentials func(ctx context.Context) (user, password string, err error)
}

// OpenWith is Open with options; nil means none.
func OpenWith(ctx context.Context, rawURL string, opts *OpenOptions) (*Backend, error) {
	u, err := driver.ParseURL(rawURL)
	if err != nil || !slices.Contains(schemes, u.Scheme) {
		return nil, fmt.Errorf("%w: want a URL such as etcd://localhost:2379/locks, with %%-encoded user and password", driver.ErrInvalid)
	}
	return openURL(ctx, u, opts)
}

// New makes a backend that uses the given client, which Close leaves open. It reads the servers'
// shortest TTL, for five seconds at most. A client whose KV, Watcher or Lease was replaced,
// as by package namespace, is ErrInvalid: use Options.Prefix instead.
//
// The client should notice within a TTL that a server is silent, and reconnect as soon: Open sets
// DialKeepAliveTime to 10s, DialKeepAliveTimeout to 3s, and gRPC's MaxDelay to 2s. LoginOptions
// are for passwords that change, and for servers before 3.5, where a client with a Username can't log in again after its
// token has ended.
func New(client *clientv3.Client, opts *Options) (*Backend, error) {
	if err := checkClient(client); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(client.Ctx(), defaultTimeout)
	defer cancel()
	b := newBackend(client, opts)
	if err := b.readMinTTL(ctx); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("no answer within %v: %w", defaultTimeout, err)
		}
		return nil, fmt.Errorf("etcdlock: %s: %w", netaddr.Listed(client.Endpoints()), openError(err))
	}
	return b, nil
}

// openError is explain for an error of Open: a user who is refused then is a wrong one.
func openError(err error) error {
	if deniesUser(err) {
		return fmt.Errorf("%w: %w", driver.ErrInvalid, explain(err))
	}
	return explain(err)
}

// checkClient refuses clients without a connection, and clients that change keys.
func checkClient(c *clientv3.Client) error {
	switch {
	case c == nil:
		return fmt.Errorf("%w: the client is nil", driver.ErrInvalid)
	case c.ActiveConnection() == nil:
		return fmt.Errorf("%w: the client has no connection: want one made by clientv3.New", driver.ErrInvalid)
	case c.Ctx().Err() != nil:
		return fmt.Errorf("%w: the client is closed", driver.ErrInvalid)
	}
	for field, is := range map[string][2]any{
		"KV": {c.KV, clientv3.NewKV(c)}, "Watcher": {c.Watcher, clientv3.NewWatcher(c)}, "Lease": {c.Lease, clientv3.NewLease(c)},
	} {
		if reflect.TypeOf(is[0]) != reflect.TypeOf(is[1]) {
			return fmt.Errorf("%w: the client's %s was replaced by a %T: want a client as clientv3.New makes it; use Options.Prefix to separate locks", driver.ErrInvalid, field, is[0])
		}
	}
	return nil
}

// newBackend makes a backend without a request to the servers.
func newBackend(client *clientv3.Client, opts *Options) *Backend {
	if opts == nil {
		opts = &Options{}
	}
	b := &Backend{client: client, prefix: opts.Prefix}
	b.caps = driver.Caps{
		Name: opts.Name, Modes: driver.AllModes,
		Fence: true, Detached: true, Downgrade: true,
		Queueing: driver.QueueAlways, MinTTL: time.Second,
	}
	if b.caps.Name == "" {
		b.caps.Name = clusterName(addrsOf(client), b.prefix)
	}
	b.stream = newWatchStream(client.ActiveConnection)
	b.batcher.init(client)
	b.leases.client = client
	b.owners.init(&b.leases, b.stream)
	b.owners.delayed.due = b.watchHolds
	return b
}

// addrsOf returns a client's endpoints without their schemes.
func addrsOf(c *clientv3.Client) []string {
	addrs := c.Endpoints()
	for i, endpoint := range addrs {
		if _, addr, ok := strings.Cut(endpoint, "://"); ok {
			addrs[i] = strings.TrimSuffix(addr, "/")
		}
	}
	return addrs
}

// clusterName returns the same name for all orders of the hosts, with TLS or without.
func clusterName(addrs []string, prefix string) string {
	return "etcd://" + netaddr.Listed(addrs) + "/" + prefix
}

// readMinTTL reads the shortest TTL that the server grants. It also finds out whether the server
// wants a login, which a lease alone doesn't need, and whether the user may read and write keys: servers check that also for
// a write that is not made.
func (b *Backend) readMinTTL(ctx context.Context) error {
	key := b.prefix + "distlock"
	never := clientv3.Compare(clientv3.CreateRevision(key), "<", 0)
	_, err := b.client.Txn(ctx).If(never).Then(clientv3.OpPut(key, "")).Else(clientv3.OpGet(key, clientv3.WithCountOnly())).Commit()
	switch {
	case err == nil, errors.Is(err, rpctypes.ErrNoSpace):
		b.permitted.Store(true)
	case !errors.Is(err, rpctypes.ErrPermissionDenied): // the user may have other names
		return err
	}
	lease, err := b.client.Grant(ctx, 1)
	if err != nil {
		return err
	}
	b.client.Revoke(ctx, lease.ID) // otherwise it ends by itself, soon
	b.caps.MinTTL = time.Duration(lease.TTL) * time.Second
	return nil
}

// urlConfig is the content of a URL.
type urlConfig struct {
	scheme       string
	addrs        []string
	login        netaddr.Credentials   // nil: none
	certificates *netaddr.Certificates // nil: no TLS
	timeout      time.Duration
	opts         *Options
}

func parseURL(u *url.URL) (*urlConfig, error) {
	addrs, err := netaddr.Of(u, defaultPort)
	if err != nil {
		return nil, err
	}
	p := driver.NewParams(u)
	c := &urlConfig{scheme: u.Scheme, addrs: addrs, timeout: p.Duration("timeout", defaultTimeout)}
	login, err := netaddr.Login(u, p)
	if err != nil {
		return nil, err
	}
	user, password, _ := login(context.Background())
	if (user == "") != (password == "") {
		return nil, fmt.Errorf("%w: want a user and a password, or neither, as in etcd://user:password@host; etcd knows the user of a certificate by itself", driver.ErrInvalid)
	}
	if user != "" {
		c.login = login
	}
	if u.Scheme == "etcds" {
		c.certificates, err = netaddr.ReadCertificates(p)
	} else if err := netaddr.NoTLS(u, "etcds"); err != nil {
		return nil, err
	}
	prefix := strings.TrimPrefix(u.Path, "/")
	if prefix != "" && !strings.HasSuffix(prefix, "/") {
		prefix += "/"
	}
	c.opts = &Options{Prefix: prefix, Name: clusterName(addrs, prefix)}
	return c, errors.Join(err, p.Err())
}

func openURL(ctx context.Context, u *url.URL, opts *OpenOptions) (*Backend, error) {
	c, err := parseURL(u)
	if err != nil {
		return nil, err
	}
	if opts != nil && opts.Credentials != nil {
		if c.login != nil {
			return nil, fmt.Errorf("%w: a user in the URL and OpenOptions.Credentials: want one of them", driver.ErrInvalid)
		}
		c.login = opts.Credentials
	}
	opening, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	b, err := c.open(opening)
	if err != nil {
		switch {
		case ctx.Err() != nil && !errors.Is(err, ctx.Err()):
			err = fmt.Errorf("%w: %w", ctx.Err(), err)
		case ctx.Err() == nil && opening.Err() != nil:
			err = fmt.Errorf("no answer within %v: %w", c.timeout, err)
		}
		return nil, fmt.Errorf("etcdlock: open %s://%s: %w", c.scheme, netaddr.Listed(c.addrs), err)
	}
	return b, nil
}

func (c *urlConfig) open(ctx context.Context) (*Backend, error) {
	if err := c.probe(ctx); err != nil {
		return nil, err
	}
	b, err := c.connect(ctx)
	return b, openError(err)
}

// connect makes a backend with a client of its own, which outlives ctx.
func (c *urlConfig) connect(ctx context.Context) (*Backend, error) {
	life, cancel := context.WithCancel(context.Background())
	stop := context.AfterFunc(ctx, cancel)
	client, err := clientv3.New(c.clientConfig(life))
	if !stop() {
		err = ctx.Err() // the client only knows its own context
	}
	closeClient := func() {
		if client != nil {
			client.Close()
		}
		cancel()
	}
	if err != nil {
		closeClient()
		return nil, err
	}
	b := newBackend(client, c.opts)
	if err := b.readMinTTL(ctx); err != nil {
		closeClient()
		return nil, err
	}
	b.closeClient, b.certificates = closeClient, c.certificates
	return b, nil
}

// endpoints returns the addresses as clientv3 wants them.
func (c *urlConfig) endpoints() []string {
	scheme := "http://"
	if c.certificates != nil {
		scheme = "https://"
	}
	var list []string
	for _, addr := range c.addrs {
		list = append(list, scheme+addr)
	}
	return list
}

// gRPC probes a silent connection after ten seconds at the earliest, and servers allow that every
// five seconds. Data that the server's system doesn't acknowledge ends a connection sooner.
const (
	keepAliveTime    = 10 * time.Second
	keepAliveTimeout = 3 * time.Second
)

// idleKeepAlive is how often the system probes an idle connection, which gRPC does not: a NAT forgets it. gRPC's own dialer leaves that
// to the system's default, which is two hours.
const idleKeepAlive = 15 * time.Second

// clientConfig reconnects soon to a server that was down: gRPC's own pauses grow to two minutes.
func (c *urlConfig) clientConfig(ctx context.Context) clientv3.Config {
	redial := backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second}
	config := clientv3.Config{
		Endpoints:   c.endpoints(),
		DialTimeout: c.timeout, DialKeepAliveTime: keepAliveTime, DialKeepAliveTimeout: keepAliveTimeout,
		Context: ctx, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: redial, MinConnectTimeout: c.timeout}),
			grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
				return (&net.Dialer{KeepAlive: idleKeepAlive}).DialContext(ctx, "tcp", addr)
			}),
		},
	}
	if c.login != nil {
		config.DialOptions = append(config.DialOptions, LoginOptions(c.login)...)
	}
	if c.certificates != nil {
		config.DialOptions = append(config.DialOptions, grpc.WithTransportCredentials(newTLS(c.certificates)))
	}
	return config
}

// probe returns nil once a server has answered that it has a leader. If none does, the error names
// the reason for each. A client would retry until its time is up, without a reason.
func (c *urlConfig) probe(ctx context.Context) error {
	anonymous := *c
	anonymous.login = nil
	anonymous.timeout *= 2 // ctx ends first
	client, err := clientv3.New(anonymous.clientConfig(ctx))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithCancel(ctx)
	errs := make(chan error, len(c.addrs))
	var probes wait.Group
	defer probes.Wait()
	defer cancel()
	for i, endpoint := range c.endpoints() {
		probes.Go(func() {
			err := c.probeServer(ctx, client, endpoint)
			if err != nil {
				err = fmt.Errorf("%s: %w", c.addrs[i], err)
			}
			errs <- err
		})
	}
	return firstSuccess(errs, len(c.addrs))
}

// firstSuccess returns the first nil or final error, or all errors.
func firstSuccess(errs <-chan error, n int) (all error) {
	for range n {
		switch err := <-errs; {
		case err == nil || driver.Final(err):
			return err
		case all == nil:
			all = err
		default:
			all = fmt.Errorf("%w; %w", all, err)
		}
	}
	return all
}

// probeServer returns nil once the server has a leader. An election takes about a second.
func (c *urlConfig) probeServer(ctx context.Context, client *clientv3.Client, endpoint string) error {
	conn, err := client.Dial(endpoint)
	if err != nil {
		return err
	}
	defer conn.Close()
	err = c.checkStatus(ctx, conn)
	for errors.Is(err, errNoLeader) && wait.Sleep(ctx, 50*time.Millisecond) == nil {
		if again := c.checkStatus(ctx, conn); ctx.Err() == nil {
			err = again
		}
	}
	return err
}

var errNoLeader = errors.New("it has no leader: a majority of the members is down or cut off")

// checkStatus returns an error if the server can't be used now.
func (c *urlConfig) checkStatus(ctx context.Context, conn *grpc.ClientConn) error {
	answer, err := pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{})
	switch code := status.Code(err); {
	case code == codes.InvalidArgument || code == codes.PermissionDenied || code == codes.Unauthenticated:
		return nil // newer servers want a login first
	case err != nil:
		return c.readableError(ctx, err)
	case tooOld(answer.Version):
		return fmt.Errorf("%w: the server is etcd %s: want %s or later", driver.ErrInvalid, answer.Version, minVersion)
	case answer.Leader == 0:
		return errNoLeader
	}
	return nil
}

// readableError strips gRPC's wrapping from a connection error.
func (c *urlConfig) readableError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("no answer: %w", ctx.Err())
	}
	s, _ := status.FromError(err)
	text := strings.TrimPrefix(s.Message(), "connection error: desc = ")
	if plain, err := strconv.Unquote(text); err == nil {
		text = plain
	}
	text = strings.TrimPrefix(strings.TrimPrefix(text, "transport: "), "Error while dialing: ")
	hint := c.certificates.Hint(errors.New(text))
	if hint == "" {
		hint = c.hint(s.Code(), text)
	}
	return errors.New(text + hint)
}

// hint suggests a change to the user after a connection error.
func (c *urlConfig) hint(code codes.Code, text string) string {
	endsIn := func(suffixes ...string) bool {
		return slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(text, s) })
	}
	switch secure := c.certificates != nil; {
	case code == codes.Unimplemented:
		return ": this is no etcd server, or an old one"
	case secure && strings.Contains(text, "handshake failed") && endsIn("EOF", "connection reset by peer", "a TLS handshake"):
		return "; does the server speak TLS?"
	case secure && endsIn("bad certificate", "certificate required", "broken pipe", "connection reset by peer"):
		return "; does the server want a client certificate, or another one: parameters cert and key?"
	case !secure && endsIn("EOF", "broken pipe", "connection reset by peer"):
		return "; does the server want TLS, as in etcds://?"
	case strings.Contains(text, "server preface"):
		return ": this is no etcd server"
	}
	return ""
}

// minVersion is the first version in which a client chooses the ids of its watches.
const minVersion = "3.4"

func tooOld(version string) bool {
	var major, minor int
	if n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor); n < 2 {
		return false
	}
	return major < 3 || major == 3 && minor < 4
}
