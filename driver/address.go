package driver

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
)

// ParseURL parses a URL as Open does: like url.Parse, but several hosts, divided by
// commas, may stand where one would; URL.Host then has them all (see Hosts). The error
// is ErrInvalid and quotes nothing, for there may be a password in it.
func ParseURL(rawURL string) (*url.URL, error) {
	before, hosts, after := cutHosts(rawURL)
	if !strings.Contains(hosts, ",") {
		u, err := url.Parse(rawURL)
		return u, malformed(err)
	}
	u, err := url.Parse(before + "host" + after)
	if err != nil {
		return nil, malformed(err)
	}
	for host := range strings.SplitSeq(hosts, ",") {
		one, err := url.Parse("scheme://" + host)
		if err == nil && one.Hostname() == "" {
			err = errors.New("a host is missing in the list of hosts")
		}
		if err != nil {
			return nil, malformed(err)
		}
	}
	u.Host = hosts
	return u, nil
}

// cutHosts finds what stands between the user and the path.
func cutHosts(rawURL string) (before, hosts, after string) {
	scheme, rest, ok := strings.Cut(rawURL, "://")
	if !ok {
		return rawURL, "", ""
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	start := strings.LastIndexByte(rest[:end], '@') + 1
	return scheme + "://" + rest[:start], rest[start:end], rest[end:]
}

// Hosts are the addresses in a URL, each as host:port. A host without a port gets the
// default, and a URL without a host means localhost.
func Hosts(u *url.URL, defaultPort string) []string {
	var addrs []string
	for part := range strings.SplitSeq(u.Host, ",") {
		one := url.URL{Host: part}
		host, port := one.Hostname(), one.Port()
		if host == "" {
			host = "localhost"
		}
		if port == "" {
			port = defaultPort
		}
		addrs = append(addrs, net.JoinHostPort(host, port))
	}
	return addrs
}

// malformed says what is wrong with a URL without quoting it: url.Error quotes all of
// it, and causes such as `invalid port ":secret" after host` a piece.
func malformed(err error) error {
	if err == nil {
		return nil
	}
	if ue := (*url.Error)(nil); errors.As(err, &ue) {
		err = ue.Err
	}
	cause, _, _ := strings.Cut(err.Error(), "\"")
	return fmt.Errorf("%w: malformed URL (%s; characters such as / # ? @ in a password must be %%-encoded)", ErrInvalid, strings.TrimSpace(cause))
}

// Redact hides the password of a URL, for messages. A text that can't be parsed, or may hold
// a password in another place, becomes its scheme alone.
func Redact(rawURL string) string {
	u, err := ParseURL(rawURL)
	// An @ further on is likely to end a password with a slash or question mark in it.
	if err != nil || strings.Contains(u.Opaque+u.Path+u.RawQuery+u.Fragment, "@") {
		scheme, _, _ := strings.Cut(rawURL, ":")
		return scheme + ":…"
	}
	q := u.Query()
	for key := range q {
		if k := strings.ToLower(key); strings.Contains(k, "pass") || strings.Contains(k, "secret") || strings.Contains(k, "token") {
			q.Set(key, "xxxxx")
			continue
		}
		for i, value := range q[key] {
			if strings.Contains(value, "://") {
				q[key][i] = Redact(value) // that of a member, say
			}
		}
	}
	u.RawQuery = q.Encode()
	return u.Redacted()
}
