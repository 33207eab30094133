package httplock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/netaddr"
)

const (
	scheme       = "http"
	secureScheme = "https"
	unixScheme   = "http+unix"
)

func init() {
	for _, s := range []string{scheme, secureScheme, unixScheme} {
		driver.Register(s, func(ctx context.Context, u *url.URL) (driver.Backend, error) { return openURL(ctx, u, OpenOptions{}) })
	}
}

// Open connects to the servers of a URL, whose form is in the package comment. It returns when a server has
// answered, ctx has ended, or the URL's timeout has passed. It returns ErrInvalid if the server refuses
// the token.
func Open(ctx context.Context, rawURL string) (*Backend, error) { return OpenWith(ctx, rawURL, nil) }

// OpenOptions are what a URL can't say.
type OpenOptions struct {
	// Credentials, if not nil, returns the token as the password, in place of the URL. The user is not used. It is
	// called by Open, and when a server refuses the token, from several goroutines. An error lets that call fail.
	Credentials func(ctx context.Context) (user, password string, err error)
}

// OpenWith is Open with options; nil means none.
func OpenWith(ctx context.Context, rawURL string, opts *OpenOptions) (*Backend, error) {
	u, err := driver.ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	if u.Scheme != scheme && u.Scheme != secureScheme && u.Scheme != unixScheme {
		return nil, fmt.Errorf("%w: want a URL such as https://host1,host2/ or http+unix:///path/to.sock", driver.ErrInvalid)
	}
	if opts == nil {
		opts = &OpenOptions{}
	}
	return openURL(ctx, u, *opts)
}

func openURL(ctx context.Context, u *url.URL, opts OpenOptions) (*Backend, error) {
	o, err := readURL(u, opts)
	if err != nil {
		return nil, err
	}
	if opts.Credentials != nil {
		opening, cancel := context.WithTimeout(ctx, o.timeout)
		_, err := o.token.reread(opening, "")
		cancel()
		if err != nil {
			return nil, fmt.Errorf("httplock: open: %w", err)
		}
	}
	began := time.Now()
	life, stop := context.WithCancelCause(context.Background())
	c := &client{servers: o.servers, certs: o.tls, token: o.token, transport: o.transport(life), quiet: quietTime}
	if err := c.open(ctx, o.timeout); err != nil {
		stop(errClosing)
		c.transport.CloseIdleConnections()
		if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("no answer within %v: %w", min(time.Since(began).Round(time.Millisecond), o.timeout), err)
		}
		hint := ""
		if errors.Is(err, context.DeadlineExceeded) {
			hint = o.tls.Hint(err)
		}
		return nil, fmt.Errorf("httplock: open: %w%s", err, hint)
	}
	return newBackend(c, life, stop), nil
}

// open finds a server that answers. Each has the same share of the time.
func (c *client) open(ctx context.Context, timeout time.Duration) error {
	var errs tried
	for i, s := range c.servers {
		share, cancel := context.WithTimeout(ctx, timeout/time.Duration(len(c.servers)))
		err := c.greet(share, s)
		cancel()
		if err == nil {
			c.current.Store(int32(i))
			return nil
		}
		errs = append(errs, outcome{s, err})
		if driver.Final(err) || ctx.Err() != nil {
			break
		}
	}
	return errs
}

// greet verifies a server. One that refuses a certificate says so after the handshake, and ends the connection. A request
// that is written just then fails without the reason, which the next one may hear.
func (c *client) greet(ctx context.Context, s *endpoint) (err error) {
	for range 5 {
		err = c.verify(ctx, s)
		if !errors.Is(err, net.ErrClosed) && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
			break
		}
	}
	return err
}

// urlOptions are the options of a URL.
type urlOptions struct {
	servers []*endpoint
	socket  string // of http+unix
	tls     *netaddr.Certificates
	token   *token
	timeout time.Duration
}

func readURL(u *url.URL, opts OpenOptions) (*urlOptions, error) {
	p := driver.NewParams(u)
	o := &urlOptions{timeout: p.Duration("timeout", 5*time.Second)}
	var errs []error
	if u.Scheme == secureScheme {
		var err error
		o.tls, err = netaddr.ReadCertificates(p)
		errs = append(errs, err)
	} else if err := netaddr.NoTLS(u, secureScheme); err != nil {
		return nil, err
	}
	var err error
	o.token, err = readToken(u, p, opts.Credentials)
	errs = append(errs, err, o.readServers(u), p.Err())
	if u.Fragment != "" {
		errs = append(errs, fmt.Errorf("%w: the URL has a #; write it as %%23 if it belongs to the path", driver.ErrInvalid))
	}
	return o, errors.Join(errs...)
}

func (o *urlOptions) readServers(u *url.URL) error {
	if u.Scheme == unixScheme {
		if u.Host != "" || !strings.HasPrefix(u.Path, "/") {
			return fmt.Errorf("%w: want the absolute path of a socket, as in http+unix:///path/to.sock", driver.ErrInvalid)
		}
		o.socket = u.Path
		o.servers = []*endpoint{newEndpoint(unixScheme+"://"+u.Path, "http://localhost")}
		return nil
	}
	port := map[string]string{scheme: "80", secureScheme: "443"}[u.Scheme]
	addrs, err := netaddr.Of(u, port)
	for _, addr := range addrs {
		base := u.Scheme + "://" + strings.TrimSuffix(addr, ":"+port) + strings.TrimRight(u.EscapedPath(), "/")
		o.servers = append(o.servers, newEndpoint(base, base))
	}
	return err
}

func newEndpoint(label, base string) *endpoint {
	return &endpoint{label: label, base: base, requests: make(places, requestsAtOnce), releases: make(places, releasesAtOnce)}
}

const (
	requestsAtOnce, releasesAtOnce = 128, 64 // at each server, each of which needs a connection

	dialTimeout = 2 * time.Second // the next server may answer sooner
	keepIdle    = 128             // idle connections to each server

	// idleTime is less than what proxies and servers have, so that none of them closes a connection at the
	// moment when it is used.
	idleTime = 30 * time.Second
)

// transport opens connections, and ends the opening when life ends. It uses HTTP/1.1: a connection without
// an answer is given up with its request, and one that carries all requests would not be.
func (o *urlOptions) transport(life context.Context) *http.Transport {
	dialer := &net.Dialer{Timeout: dialTimeout}
	dial := dialing(life, dialer.DialContext)
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dial,
		MaxIdleConns: keepIdle * len(o.servers), MaxIdleConnsPerHost: keepIdle, IdleConnTimeout: idleTime,
		TLSClientConfig: throughProxy(o.tls), TLSHandshakeTimeout: dialTimeout,
		TLSNextProto:       map[string]func(string, *tls.Conn) http.RoundTripper{},
		DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
	}
	if o.tls != nil {
		t.DialTLSContext = dialing(life, func(ctx context.Context, network, addr string) (net.Conn, error) {
			return (&tls.Dialer{NetDialer: dialer, Config: o.tls.Config()}).DialContext(ctx, network, addr)
		})
	}
	if o.socket != "" {
		t.Proxy = nil
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, "unix", o.socket) }
	}
	return t
}

// throughProxy returns the config for connections through a proxy, for which there is no DialTLSContext. The client's own
// certificate is the one in its files at that moment.
func throughProxy(certs *netaddr.Certificates) *tls.Config {
	config := certs.Config()
	if config != nil && len(config.Certificates) > 0 {
		config.Certificates = nil
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &certs.Config().Certificates[0], nil
		}
	}
	return config
}

type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// dialing lets dial end with life, too.
func dialing(life context.Context, dial dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(life, cancel)()
		return dial(ctx, network, addr)
	}
}
