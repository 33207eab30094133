package driver

import (
	"fmt"
	"net"
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
	"valkey": "redis", "valkeys": "rediss", "mariadb": "mysql", "zookeeper": "zk", "sqlite3": "sqlite", "pg": "postgres", "pgx": "postgres",
}

// meant returns an error for a URL that lacks its scheme or has a name for it that others use, if what was meant is
// plain. It shows nothing that may be a password.
func meant(rawURL string) error {
	address, _, _ := strings.Cut(rawURL, "/")
	host, port, err := net.SplitHostPort(address)
	if err == nil && host != "" && homes[host] == "" && usualPorts[port] != "" && !strings.ContainsAny(rawURL, "?@#%") {
		return fmt.Errorf("%w: URL has no scheme; did you mean %s://%s?", ErrInvalid, usualPorts[port], rawURL)
	}
	if strings.HasPrefix(rawURL, "/") && !strings.HasPrefix(rawURL, "//") && !strings.ContainsAny(rawURL, "?@:") {
		return fmt.Errorf("%w: URL has no scheme; did you mean sqlite:%s?", ErrInvalid, rawURL)
	}
	scheme, rest, ok := strings.Cut(rawURL, ":")
	if ours := otherNames[scheme]; ok && ours != "" {
		slashes := ""
		if strings.HasPrefix(rest, "//") {
			slashes = "//"
		}
		return fmt.Errorf("%w: unknown URL scheme %q; did you mean %s:%s…?", ErrInvalid, scheme, ours, slashes)
	}
	return nil
}
