package mysqllock

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/netaddr"
)

// dialTimeout bounds the making of a connection, beside the caller's context.
const dialTimeout = 5 * time.Second

// lockWait bounds in seconds how long a statement waits for a row, also if nobody waits for
// its answer any more: it would come late. It is tried again for as long as somebody does.
const lockWait = "1"

// mostConns bounds parameter max_connections: it is the most that a server can have.
const mostConns = 100_000

// readURL says where the server is, how to use it, and through how many connections; 0: as
// many as it takes.
func readURL(u *url.URL) (config *mysql.Config, opts *Options, limit int, err error) {
	p := driver.NewParams(u)
	config, err = readConfig(u, p)
	errs := []error{err}
	opts = &Options{Strategy: readStrategy(p), Table: p.String("table", ""), Create: p.Bool("create", false),
		OneWriter: p.Bool("onewriter", false)}
	if opts.Strategy.leases() {
		config.Params["innodb_lock_wait_timeout"] = lockWait
	}
	limit = p.Int("max_connections", 0, 1, mostConns)
	errs = append(errs, readPlace(u, p, config))
	return config, opts, limit, errors.Join(append(errs, p.Err())...)
}

func readStrategy(p *driver.Params) Strategy {
	var choices []string
	for _, s := range Strategies() {
		choices = append(choices, string(s))
	}
	return Strategy(p.Choice("strategy", choices...))
}

// readConfig reads those parameters of the MySQL driver that make sense for locks.
func readConfig(u *url.URL, p *driver.Params) (*mysql.Config, error) {
	c := mysql.NewConfig()
	c.User = u.User.Username()
	c.Passwd, _ = u.User.Password()
	c.Logger = &mysql.NopLogger{} // errors tell it
	c.InterpolateParams = true
	// A server that became a replica loses the pool's connections, so that they find the primary.
	c.RejectReadOnly = true
	c.Params = map[string]string{"autocommit": "1", "sql_mode": "'STRICT_ALL_TABLES'"}
	c.Timeout = p.Duration("timeout", dialTimeout)
	c.ReadTimeout = p.Duration("readTimeout", 0)
	c.WriteTimeout = p.Duration("writeTimeout", 0)
	c.AllowNativePasswords = p.Bool("allowNativePasswords", true)
	c.AllowCleartextPasswords = p.Bool("allowCleartextPasswords", false)
	c.AllowFallbackToPlaintext = p.Bool("allowFallbackToPlaintext", false)
	c.ConnectionAttributes = p.String("connectionAttributes", "")
	return c, readTLS(u, p, c)
}

// readTLS reads how the server is to be trusted.
func readTLS(u *url.URL, p *driver.Params, c *mysql.Config) error {
	mode := p.Choice("tls", "false", "true", "skip-verify", "preferred")
	config, err := netaddr.TLS(p)
	if mode != "true" {
		c.TLSConfig = mode
		if netaddr.NoTLS(u, "") != nil {
			return fmt.Errorf("%w: parameters ca, cert and key go with tls=true", driver.ErrInvalid)
		}
		return nil
	}
	c.TLS = config
	return err
}

// readPlace reads host and port, or the socket, and the database.
func readPlace(u *url.URL, p *driver.Params, c *mysql.Config) error {
	addrs, err := netaddr.Of(u, "3306")
	if err != nil {
		return err
	}
	if len(addrs) > 1 {
		return fmt.Errorf("%w: want one host: the database's primary, or a name that leads to it; locks on several servers are what quorum: is for", driver.ErrInvalid)
	}
	c.Net, c.Addr = "tcp", addrs[0]
	if c.TLS != nil {
		c.TLS.ServerName = u.Hostname()
	}
	if socket := p.String("socket", ""); socket != "" {
		if u.Host != "" {
			return fmt.Errorf("%w: want a host or a socket, as in mysql:///app?socket=/run/mysqld/mysqld.sock, not both", driver.ErrInvalid)
		}
		c.Net, c.Addr = "unix", socket
	}
	c.DBName = strings.TrimPrefix(u.Path, "/")
	if c.DBName == "" || strings.Contains(c.DBName, "/") || u.Fragment != "" {
		// It may be a piece of a password: it is not quoted.
		return fmt.Errorf("%w: want the name of a database, as in mysql://user:password@localhost:3306/app; characters such as / # ? @ in a password must be %%-encoded", driver.ErrInvalid)
	}
	return nil
}
