package zklock

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/netaddr"
	"github.com/distlock/distlock/internal/zk"
)

// The schemes.
const (
	scheme       = "zk"
	secureScheme = "zks"
)

// options are what a URL says.
type options struct {
	name           string // for Caps
	servers        []string
	chroot         string
	user, password string
	private        bool // what is made is the user's alone
	tls            *tls.Config
	timeout        time.Duration // for opening a session
	dial           func(ctx context.Context, network, addr string) (net.Conn, error)
}

func readURL(u *url.URL) (*options, error) {
	p := driver.NewParams(u)
	o := &options{user: u.User.Username(), timeout: p.Duration("timeout", 5*time.Second)}
	o.password, _ = u.User.Password()
	o.private = p.Choice("acl", "open", "creator") == "creator"
	var errs []error
	if u.Scheme == secureScheme {
		var err error
		o.tls, err = netaddr.TLS(p)
		errs = append(errs, err)
	} else if err := netaddr.NoTLS(u, secureScheme); err != nil {
		return nil, err
	}
	var err error
	o.servers, err = netaddr.Of(u, "2181")
	errs = append(errs, err, o.readChroot(u), o.checkUser(), p.Err())
	o.name = u.Scheme + "://" + netaddr.Listed(o.servers) + cmp.Or(o.chroot, "/")
	return o, errors.Join(errs...)
}

func (o *options) readChroot(u *url.URL) error {
	o.chroot = strings.TrimSuffix(u.Path, "/")
	for _, segment := range strings.Split(o.chroot, "/")[min(1, len(o.chroot)):] {
		if o.chroot != "" && (segment == "" || segment == "." || segment == ".." || escapeRunes(segment, "") != segment) {
			return fmt.Errorf("%w: the chroot is no path that ZooKeeper can have", driver.ErrInvalid)
		}
	}
	if o.chroot == "/"+reserved || strings.HasPrefix(o.chroot, "/"+reserved+"/") {
		return fmt.Errorf("%w: the chroot is in the part that ZooKeeper keeps for itself", driver.ErrInvalid)
	}
	return nil
}

func (o *options) checkUser() error {
	switch {
	case o.user == "" && o.private:
		return fmt.Errorf("%w: parameter acl=creator wants a user and a password in the URL", driver.ErrInvalid)
	case o.user == "" && o.password != "":
		return fmt.Errorf("%w: a password without a user", driver.ErrInvalid)
	case strings.Contains(o.user, ":"):
		return fmt.Errorf("%w: ZooKeeper's users can't have a colon in their names", driver.ErrInvalid)
	}
	return nil
}

// config is for a session with a timeout.
func (o *options) config(timeout time.Duration) zk.Config {
	return zk.Config{
		Servers: o.servers, Chroot: o.chroot, Timeout: timeout,
		User: o.user, Password: o.password, Private: o.private, TLS: o.tls, Dial: o.dial,
	}
}
