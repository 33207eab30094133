package driver

import (
	"fmt"
	"regexp"
	"strings"
)

// usualPorts are the schemes of servers, by the ports that they listen at by default.
var usualPorts = map[string]string{
	"6379": "redis", "2379": "etcd", "2181": "zk", "3306": "mysql", "5432": "postgres", "7077": "http", "26379": "redis+sentinel",
}

// otherNames are schemes that other programs use for what has another one here.
var otherNames = map[string]string{
	"valkey": "redis", "valkeys": "rediss", "mariadb": "mysql", "zookeeper": "zk", "sqlite3": "sqlite", "pg": "postgres", "pgx": "postgres",
}

var address = regexp.MustCompile(`^([\w.-]+|\[[0-9a-fA-F:]+\]):(\d+)(/[\w.-]*)?$`)

// meant returns an error for a URL that lacks its scheme or has a name for it that others use, if what was meant is
// plain. It shows nothing that may be a password.
func meant(rawURL string) error {
	if m := address.FindStringSubmatch(rawURL); m != nil && homes[m[1]] == "" && usualPorts[m[2]] != "" {
		return fmt.Errorf("%w: URL has no scheme; did you mean %s://%s?", ErrInvalid, usualPorts[m[2]], rawURL)
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
