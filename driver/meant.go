package driver

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strings"
)

// homes are the packages that register the schemes.
var homes = map[string]string{
	"mem": "memlock", "sqlite": "sqlitelock",
	"redis": "redislock", "rediss": "redislock", "redis+unix": "redislock",
	"shard": "shard", "quorum": "quorum", "quorum+redis": "quorum", "quorum+rediss": "quorum",
	"redis+sentinel": "redislock", "rediss+sentinel": "redislock", "redis+cluster": "redislock", "rediss+cluster": "redislock",
	"etcd": "etcdlock", "etcds": "etcdlock", "zk": "zklock", "zks": "zklock", "mysql": "mysqllock", "postgres": "pglock", "postgresql": "pglock",
	"http": "httplock", "https": "httplock", "http+unix": "httplock", "s3": "s3lock", "kube": "kubelock",
}

// usualPorts are the schemes of servers, by the ports that they listen at by default.
var usualPorts = map[string]string{
	"6379": "redis", "2379": "etcd", "2181": "zk", "3306": "mysql", "5432": "postgres", "7077": "http", "26379": "redis+sentinel",
}

// otherNames are schemes that other programs use for what has another one here.
var otherNames = map[string]string{
	"valkey": "redis", "valkeys": "rediss", "keydb": "redis", "redis+tls": "rediss", "redis+ssl": "rediss", "redis-cluster": "redis+cluster",
	"redis-sentinel": "redis+sentinel", "sentinel": "redis+sentinel", "zookeeper": "zk", "etcd3": "etcd", "k8s": "kube", "kubernetes": "kube",
	"mariadb": "mysql", "mysql2": "mysql", "pg": "postgres", "pgx": "postgres", "pgsql": "postgres", "psql": "postgres",
	"sqlite3": "sqlite", "file": "sqlite", "memory": "mem",
}

// meant returns an error for a URL that has other text around it, lacks its scheme or has a name for it that others use, if
// what was meant is plain. It shows nothing that may be a password.
func meant(rawURL string) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
	}
	before, _, isURL := strings.Cut(rawURL, "://")
	address, _, _ := strings.Cut(rawURL, "/")
	host, port, err := net.SplitHostPort(address)
	hasPort := err == nil && host != "" && homes[host] == "" && port != "" && strings.Trim(port, "0123456789") == "" && !strings.ContainsAny(rawURL, "?@#%")
	switch {
	case strings.Trim(rawURL, " \t\r\n\"'`") != rawURL:
		return refuse("URL has blanks or quotes around it; want it without them")
	case isURL && strings.ContainsAny(before, "= ") && !strings.Contains(before, "?"):
		return refuse("URL has other text before it; want it alone, such as redis://localhost:6379")
	case strings.Contains(rawURL, "@tcp(") || strings.Contains(rawURL, "@unix("):
		return refuse("URL is written as for a driver of MySQL; want mysql://USER:PASSWORD@HOST:PORT/DATABASE")
	case !isURL && strings.Contains(rawURL, "host=") && strings.Contains(rawURL, " "):
		return refuse("URL is written as for libpq; want postgres://USER:PASSWORD@HOST:PORT/DATABASE")
	case hasPort && usualPorts[port] != "":
		return refuse("URL has no scheme; did you mean %s://%s?", usualPorts[port], rawURL)
	case hasPort:
		return refuse("URL has no scheme; want one before the address, such as redis:// or postgres://")
	case strings.HasPrefix(rawURL, "/") && !strings.HasPrefix(rawURL, "//") && !strings.ContainsAny(rawURL, "?@:"):
		return refuse("URL has no scheme; did you mean sqlite:%s?", rawURL)
	}
	given, _, _ := strings.Cut(rawURL, ":")
	scheme, rest, _ := strings.Cut(strings.TrimPrefix(rawURL, "jdbc:"), ":")
	ours := otherNames[scheme]
	if dialect, driver, has := strings.Cut(scheme, "+"); has && driver != "" && usualDatabase(cmp.Or(otherNames[dialect], dialect)) {
		ours = cmp.Or(otherNames[dialect], dialect) // as SQLAlchemy has it
	} else if given != scheme && usualDatabase(scheme) {
		ours = scheme
	}
	if ours == "" || slices.Contains(Schemes(), given) {
		return nil
	}
	slashes := ""
	if strings.HasPrefix(rest, "//") {
		slashes = "//"
	}
	return refuse("unknown URL scheme %q; did you mean %s:%s…?", given, ours, slashes)
}

func usualDatabase(scheme string) bool {
	return homes[scheme] == "mysqllock" || homes[scheme] == "pglock"
}
