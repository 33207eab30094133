package pglock

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	sqldriver "database/sql/driver"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/netaddr"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// connector opens the connections of a URL. It reads the URL's files again for each, since passwords and certificates are
// renewed more often than programs start, and sets each completely: a setting of the user, of the database or of the server may
// change at any time.
type connector struct {
	sqldriver.Connector
	url      string              // without distlock's own parameters
	login    netaddr.Credentials // nil: the password is the URL's, or pgx finds it
	settings settings
	pooler   Pooler

	mu      sync.Mutex
	last    *pgx.ConnConfig // the last one that could be read
	problem error           // why the files can't be read now
}

// newConnector returns the connector of a URL. login may be nil.
func newConnector(u *url.URL, opts *Options, login netaddr.Credentials) (*connector, error) {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, fmt.Errorf("%w: URL: malformed query", driver.ErrInvalid)
	}
	c := &connector{login: login, settings: poolSettings(opts), pooler: opts.Pooler}
	_, given := u.User.Password()
	switch file := query.Has("password_file"); {
	case login != nil && (given || file):
		return nil, fmt.Errorf("%w: a function for the password, and a password in the URL: want one of them", driver.ErrInvalid)
	case file:
		p := driver.NewParams(&url.URL{RawQuery: url.Values{"password_file": query["password_file"]}.Encode()})
		if c.login, err = netaddr.Login(u, p); err != nil {
			return nil, err
		}
	}
	for _, key := range ownParams {
		query.Del(key)
	}
	theirs := *u
	theirs.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20") // a plus is a plus to libpq
	c.url = theirs.String()
	config, err := pgx.ParseConfig(c.url)
	if err != nil {
		return nil, explainConfig(err)
	}
	c.last = config
	c.Connector = stdlib.GetConnector(*config, stdlib.OptionBeforeConnect(c.prepare), stdlib.OptionAfterConnect(c.set),
		// A statement sent to a server that has gone would have an unknown outcome.
		stdlib.OptionShouldPing(func(_ context.Context, p stdlib.ShouldPingParams) bool {
			return !canPeek && p.IdleDuration > time.Second
		}),
		stdlib.OptionResetSession(func(_ context.Context, pg *pgx.Conn) error {
			if !socketAlive(pg.PgConn().Conn()) {
				return sqldriver.ErrBadConn
			}
			return nil
		}))
	return c, nil
}

// Connect opens a connection. Its error names a certificate of ours that has ended, which servers do not.
func (c *connector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		if hint := c.hint(); hint != "" {
			err = fmt.Errorf("%w; %s", err, hint)
		}
		return nil, err
	}
	return conn, nil
}

// prepare reads the files of the URL for a connection. Files that can't be used, as while they are being replaced, leave the
// certificates as they were.
func (c *connector) prepare(ctx context.Context, next *pgx.ConnConfig) error {
	fresh, err := pgx.ParseConfig(c.url)
	c.mu.Lock()
	c.problem = err
	if err == nil {
		c.last = fresh
	}
	*next = *c.last
	c.mu.Unlock()
	if c.login == nil {
		return nil
	}
	user, password, err := c.login(ctx)
	if user != "" {
		next.User = user
	}
	next.Password = password
	return err
}

// hint returns what may be wrong with our own certificate.
func (c *connector) hint() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.problem != nil {
		return "the files of its certificates can't be used: " + configProblem(c.problem)
	}
	for _, config := range tlsConfigs(c.last) {
		for _, own := range config.Certificates {
			leaf, err := x509.ParseCertificate(own.Certificate[0])
			if err == nil && time.Now().After(leaf.NotAfter) {
				return fmt.Sprintf("the certificate in %s ended at %s", c.certificateFile(), leaf.NotAfter.Format(time.RFC3339))
			}
		}
	}
	return ""
}

func tlsConfigs(config *pgx.ConnConfig) (all []*tls.Config) {
	if config.TLSConfig != nil {
		all = append(all, config.TLSConfig)
	}
	for _, other := range config.Fallbacks {
		if other.TLSConfig != nil {
			all = append(all, other.TLSConfig)
		}
	}
	return all
}

// certificateFile returns where pgx has our own certificate from.
func (c *connector) certificateFile() string {
	param := ""
	if u, err := url.Parse(c.url); err == nil {
		param = u.Query().Get("sslcert")
	}
	return cmp.Or(param, os.Getenv("PGSSLCERT"), "~/.postgresql/postgresql.crt")
}

// set sets a new connection. Behind a pooler in transaction mode that would be another client's next, so there, and behind one
// that is not declared, statements bring what they need. A pooler makes up the process number that a client sees.
func (c *connector) set(ctx context.Context, pg *pgx.Conn) error {
	if c.pooler == TransactionPooler {
		return nil
	}
	condition := ""
	if c.pooler == "" {
		condition = " AND pg_backend_pid() = " + strconv.FormatUint(uint64(pg.PgConn().PID()), 10)
	}
	err := pg.PgConn().Exec(ctx, "SELECT "+c.settings.call(condition)).Close()
	if err != nil {
		pg.Close(ctx)
	}
	return err
}
