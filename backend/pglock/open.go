package pglock

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/distlock/distlock/driver"
	"github.com/jackc/pgx/v5"
)

// schemes are those that Open knows. libpq has both.
var schemes = []string{"postgres", "postgresql"}

func init() {
	for _, scheme := range schemes {
		driver.Register(scheme, func(ctx context.Context, u *url.URL) (driver.Backend, error) { return openURL(ctx, u) })
	}
}

// Open connects to the database of a URL:
//
//	postgres://app:secret@db1:5432/app?sslmode=verify-full&create=true
//	postgres://app:secret@db1,db2/app?target_session_attrs=read-write
//	postgres:///app?host=/var/run/postgresql&strategy=advisory&level=transaction
//
// Parameters of its own are strategy, level, table and create, see Options, and
// max_connections, the limit of the pool: by default 16 with strategy Row and none with
// Advisory. All others are pgx's, which knows libpq's, and takes what it doesn't know for a
// setting of the server. It opens connections as it needs them.
func Open(ctx context.Context, rawURL string) (*Backend, error) {
	u, err := driver.ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(schemes, u.Scheme) {
		return nil, fmt.Errorf("%w: want a URL such as postgres://user:password@host:5432/database, with %%-encoded user and password", driver.ErrInvalid)
	}
	return openURL(ctx, u)
}

func openURL(ctx context.Context, u *url.URL) (*Backend, error) {
	opts, limit, err := readOptions(u)
	if err != nil {
		return nil, err
	}
	config, err := readConfig(u)
	if err != nil {
		return nil, err
	}
	return start(ctx, &database{db: openPool(config, limit), limit: limit, owned: true}, opts)
}

// ours are the parameters that pgx is not shown.
var ours = []string{"strategy", "level", "table", "create", "max_connections"}

// readOptions reads our own parameters. The limit is of connections; 0: none.
func readOptions(u *url.URL) (opts *Options, limit int, err error) {
	own := url.Values{}
	for key, values := range u.Query() {
		if slices.Contains(ours, key) {
			own[key] = values
		}
	}
	p := driver.NewParams(&url.URL{RawQuery: own.Encode()})
	opts = &Options{
		Strategy: Strategy(p.Choice("strategy", string(Row), string(Advisory))),
		Level:    Level(p.String("level", "")),
		Table:    p.String("table", ""),
		Create:   p.Bool("create", false),
	}
	limit = maxConns
	if opts.Strategy == Advisory {
		limit = 0 // those who wait and those who hold need one each
	}
	limit = p.Int("max_connections", limit, 1, mostConns)
	return opts, limit, p.Err()
}

// readConfig gives pgx the rest of the URL.
func readConfig(u *url.URL) (*pgx.ConnConfig, error) {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, fmt.Errorf("%w: URL: malformed query", driver.ErrInvalid)
	}
	for _, key := range ours {
		query.Del(key)
	}
	theirs := *u
	theirs.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20") // a plus is a plus to libpq
	config, err := pgx.ParseConfig(theirs.String())
	if err != nil {
		return nil, explainConfig(err)
	}
	return config, nil
}
