package mysqllock

import (
	"cmp"
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/netaddr"
)

// login is how each connection trusts the server and is trusted. Passwords and certificates change while a program runs, so
// they are read for each connection.
type login struct {
	credentials  netaddr.Credentials
	certificates *netaddr.Certificates // nil unless tls=true
	host         string
}

// readLogin reads user and password, and how to use TLS.
func readLogin(u *url.URL, p *driver.Params, c *mysql.Config, own netaddr.Credentials) (*login, error) {
	l := &login{host: u.Hostname()}
	var err error
	if l.credentials, err = netaddr.Login(u, p); err != nil {
		err = fmt.Errorf("mysqllock: %w", err)
	}
	if own != nil {
		l.credentials = func(ctx context.Context) (user, password string, err error) {
			user, password, err = own(ctx)
			return cmp.Or(user, u.User.Username()), password, err
		}
	}
	mode := p.Choice("tls", "false", "true", "skip-verify", "preferred")
	certificates, broken := netaddr.ReadCertificates(p)
	switch {
	case mode == "true":
		l.certificates = certificates
		err = errors.Join(err, broken)
	case netaddr.NoTLS(u, "") != nil:
		err = errors.Join(err, fmt.Errorf("%w: parameters ca, cert, key and servername go with tls=true", driver.ErrInvalid))
	default:
		c.TLSConfig = mode
	}
	return l, err
}

// connector returns what opens connections.
func (l *login) connector(c *mysql.Config) (sqldriver.Connector, error) {
	if err := c.Apply(mysql.BeforeConnect(l.prepare)); err != nil {
		return nil, err
	}
	return mysql.NewConnector(c)
}

// prepare completes the configuration of one connection.
func (l *login) prepare(ctx context.Context, c *mysql.Config) (err error) {
	if c.User, c.Passwd, err = l.credentials(ctx); err != nil {
		return err
	}
	if l.certificates != nil { // else TLS is what the parameter tls says
		c.TLS = l.certificates.Config()
		c.TLS.ServerName = cmp.Or(c.TLS.ServerName, l.host)
	}
	return nil
}

// explain adds to an error of a connection what may help. It may be that a client certificate is wanted: the server does
// not say so, or the driver does not pass it on.
func (l *login) explain(err error) error {
	hint := l.certificates.Hint(err)
	switch {
	case l.certificates == nil || hint != "":
	case number(err) == errWrongUser && len(l.certificates.Config().Certificates) == 0:
		hint = "; does the user need a client certificate: parameters cert and key?"
	case errors.Is(err, mysql.ErrInvalidConn), strings.HasSuffix(err.Error(), "bad connection"): // the driver has an error of its own beside ErrBadConn
		hint = "; does the server want a client certificate, or another one: parameters cert and key?"
	}
	if hint == "" {
		return err
	}
	return fmt.Errorf("%w%s", err, hint)
}
