package zklock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/netaddr"
	"github.com/distlock/distlock/internal/wait"
	"github.com/distlock/distlock/internal/zk"
)

const (
	scheme       = "zk"
	secureScheme = "zks"
)

func init() {
	for _, s := range []string{scheme, secureScheme} {
		driver.Register(s, func(ctx context.Context, u *url.URL) (driver.Backend, error) { return openURL(ctx, u, nil) })
	}
}

// Open connects to the servers of a URL, whose form is in the package comment. It returns when a
// server has answered, ctx has ended, or the URL's timeout has passed. It returns ErrInvalid if the
// servers are too old, the chroot does not exist, or the user is refused.
func Open(ctx context.Context, rawURL string) (*Backend, error) { return OpenWith(ctx, rawURL, nil) }

// OpenOptions are what a URL can't say.
type OpenOptions struct {
	// Credentials, if not nil, returns the user and the password of a login, in place of the URL's. It is called before each
	// connection, and after the servers have refused a right. It must be safe for concurrent use. If it returns an
	// error that connection fails, and another is tried. A session that has logged in before goes on with what it had.
	Credentials func(ctx context.Context) (user, password string, err error)
}

// OpenWith is Open with options; nil means none.
func OpenWith(ctx context.Context, rawURL string, opts *OpenOptions) (*Backend, error) {
	if opts == nil {
		opts = &OpenOptions{}
	}
	u, err := driver.ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	if u.Scheme != scheme && u.Scheme != secureScheme {
		return nil, fmt.Errorf("%w: want a URL such as zk://host1:2181,host2:2181/chroot, with %%-encoded user and password", driver.ErrInvalid)
	}
	return openURL(ctx, u, opts.Credentials)
}

func openURL(ctx context.Context, u *url.URL, credentials netaddr.Credentials) (*Backend, error) {
	o, err := readURL(u, credentials)
	if err != nil {
		return nil, err
	}
	opening, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	least, most, err := o.learnBounds(opening)
	if err != nil {
		if why := o.refusal(err); why != "" {
			return nil, fmt.Errorf("zklock: open %s: %w: %s: %w", o.name, driver.ErrInvalid, why, err)
		}
		switch {
		case ctx.Err() != nil:
			err = fmt.Errorf("%w: %w", ctx.Err(), err)
		case opening.Err() != nil:
			err = fmt.Errorf("no answer within %v: %w", o.timeout, o.explain(err))
		default:
			err = o.explain(err)
		}
		return nil, fmt.Errorf("zklock: open %s: %w", o.name, err)
	}
	return newBackend(o, least, most), nil
}

func readURL(u *url.URL, credentials netaddr.Credentials) (*serverOptions, error) {
	p := driver.NewParams(u)
	o := &serverOptions{user: u.User.Username(), timeout: p.Duration("timeout", 5*time.Second)}
	o.private = p.Choice("acl", "open", "creator") == "creator"
	var errs []error
	if u.Scheme == secureScheme {
		var err error
		o.certs, err = netaddr.ReadCertificates(p)
		errs = append(errs, err)
	} else if err := netaddr.NoTLS(u, secureScheme); err != nil {
		return nil, err
	}
	errs = append(errs, o.readLogin(u, p, credentials))
	var err error
	o.servers, err = netaddr.Of(u, "2181")
	errs = append(errs, err, o.readChroot(u), p.Err())
	o.name = u.Scheme + "://" + netaddr.Listed(o.servers) + cmp.Or(o.chroot, "/")
	return o, errors.Join(errs...)
}

func (o *serverOptions) readChroot(u *url.URL) error {
	o.chroot = strings.TrimSuffix(u.Path, "/")
	for _, segment := range strings.Split(o.chroot, "/")[min(1, len(o.chroot)):] {
		if o.chroot != "" && (segment == "" || segment == "." || segment == ".." || escapeRunes(segment, "") != segment) {
			return fmt.Errorf("%w: the chroot is not a valid ZooKeeper path; want one such as /app/locks", driver.ErrInvalid)
		}
	}
	if o.chroot == "/"+reserved || strings.HasPrefix(o.chroot, "/"+reserved+"/") {
		return fmt.Errorf("%w: the chroot is below /%s, which ZooKeeper reserves", driver.ErrInvalid, reserved)
	}
	return nil
}

// readLogin reads the user of the URL, unless there are credentials.
func (o *serverOptions) readLogin(u *url.URL, p *driver.Params, credentials netaddr.Credentials) error {
	login, err := netaddr.Login(u, p)
	if err != nil {
		return err
	}
	_, password := u.User.Password()
	password = password || u.Query().Has("password_file")
	switch {
	case credentials != nil && (o.user != "" || password):
		return fmt.Errorf("%w: a user in the URL and Credentials: want one of them", driver.ErrInvalid)
	case credentials != nil:
		o.login = credentials
	case o.user == "" && o.private:
		return fmt.Errorf("%w: parameter acl=creator needs a user and a password in the URL", driver.ErrInvalid)
	case o.user == "" && password:
		return fmt.Errorf("%w: a password without a user", driver.ErrInvalid)
	case strings.Contains(o.user, ":"):
		return fmt.Errorf("%w: ZooKeeper's users can't have a colon in their names", driver.ErrInvalid)
	case o.user != "":
		o.login = login
	}
	return nil
}

// Session timeouts that no server grants.
const (
	tooShort = time.Millisecond
	tooLong  = 24 * 24 * time.Hour // in ms it fits an int32
)

// learnBounds requests sessions with a timeout that is too long and one that is too short, to learn
// the servers' bounds.
func (o *serverOptions) learnBounds(ctx context.Context) (least, most time.Duration, err error) {
	longest := o.config(tooLong)
	longest.Chroot = ""
	if most, err = o.probe(ctx, longest, "/"+reserved+"/config"); err != nil {
		return 0, 0, err
	}
	for {
		// The servers do answer. But such a short session may end before its first request.
		least, err = o.probe(ctx, o.config(tooShort))
		if err == nil || o.refusal(err) != "" || ctx.Err() != nil {
			return least, most, err
		}
		wait.Sleep(ctx, 10*time.Millisecond)
	}
}

// probe opens a session for a moment and returns its timeout. The nodes exist since 3.5.
func (o *serverOptions) probe(ctx context.Context, config zk.Config, nodes ...string) (time.Duration, error) {
	c, err := zk.Dial(ctx, config)
	if err != nil {
		return 0, err
	}
	defer closeConn(ctx, c)
	for _, node := range nodes {
		_, _, err := c.Get(ctx, node)
		if errors.Is(err, zk.ErrNoNode) {
			return 0, fmt.Errorf("%w: %s", driver.ErrInvalid, tooOld)
		}
		if err != nil && !errors.Is(err, zk.ErrNoAuth) {
			return 0, err
		}
	}
	return c.Timeout(), nil
}
