package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Opener makes a backend of a URL. It refuses parameters that it does not know
// (see Params), and its errors carry no password.
type Opener func(ctx context.Context, u *url.URL) (Backend, error)

var openers = struct {
	sync.RWMutex
	m map[string]Opener
}{m: map[string]Opener{}}

// Register makes a scheme known to Open. Backends call it from init. It panics if
// the scheme is taken.
func Register(scheme string, o Opener) {
	openers.Lock()
	defer openers.Unlock()
	if _, dup := openers.m[scheme]; dup {
		panic("distlock: scheme registered twice: " + scheme)
	}
	openers.m[scheme] = o
}

// Schemes lists what is registered, sorted.
func Schemes() []string {
	openers.RLock()
	defer openers.RUnlock()
	return slices.Sorted(maps.Keys(openers.m))
}

// Open makes a backend of a URL by the opener registered for its scheme. A URL that
// is malformed or of an unknown scheme is ErrInvalid.
func Open(ctx context.Context, rawURL string) (Backend, error) {
	if err := meant(rawURL); err != nil {
		return nil, err
	}
	u, err := ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	if u.Scheme == "" {
		return nil, fmt.Errorf("%w: URL has no scheme; want one such as redis://localhost:6379 or sqlite:/path/to/locks.db", ErrInvalid)
	}
	openers.RLock()
	o := openers.m[u.Scheme]
	openers.RUnlock()
	if o != nil {
		b, err := o(ctx, u)
		if err != nil {
			return nil, err // b may be a nil pointer in an interface that is not nil
		}
		return b, nil
	}
	if pkg, ok := homes[u.Scheme]; ok {
		return nil, fmt.Errorf("%w: scheme %q is not registered (registered: %s); add: import _ \"github.com/distlock/distlock/backend/%s\"",
			ErrInvalid, u.Scheme, list(Schemes()), pkg)
	}
	return nil, fmt.Errorf("%w: unknown URL scheme %q (registered: %s)", ErrInvalid, u.Scheme, list(Schemes()))
}

func list(s []string) string {
	if len(s) == 0 {
		return "none"
	}
	return strings.Join(s, ", ")
}

// Params reads the query of a URL and remembers what is wrong with it, so that an
// Opener can ask for all it knows and then check once.
//
//	p := driver.NewParams(u)
//	layout := p.Choice("layout", "string", "redisson")
//	if err := p.Err(); err != nil { … }
type Params struct {
	values url.Values
	known  []string
	errs   []error
}

// NewParams starts reading u's query.
func NewParams(u *url.URL) *Params {
	v, err := url.ParseQuery(u.RawQuery)
	p := &Params{values: v}
	if err != nil {
		p.errs = append(p.errs, errors.New("malformed query"))
	}
	return p
}

// String returns the parameter's value, or def.
func (p *Params) String(key, def string) string {
	p.known = append(p.known, key)
	v, ok := p.values[key]
	if !ok {
		return def
	}
	if len(v) > 1 {
		p.fail("parameter %s is given %d times; want it once", key, len(v))
	}
	return v[0]
}

// Choice returns one of the given values; the first is the default.
func (p *Params) Choice(key string, choices ...string) string {
	v := p.String(key, choices[0])
	if !slices.Contains(choices, v) {
		p.fail("parameter %s=%s: want one of %s", key, v, strings.Join(choices, ", "))
	}
	return v
}

// Duration returns a positive duration such as 1.5s, or def.
func (p *Params) Duration(key string, def time.Duration) time.Duration {
	return parse(p, key, def, "a positive duration such as 1.5s", func(s string) (time.Duration, bool) {
		d, err := time.ParseDuration(s)
		return d, err == nil && d > 0
	})
}

// Bool returns true or false, or def.
func (p *Params) Bool(key string, def bool) bool {
	return parse(p, key, def, "true or false", func(s string) (bool, bool) {
		b, err := strconv.ParseBool(s)
		return b, err == nil
	})
}

// Int returns a whole number from min to max, or def.
func (p *Params) Int(key string, def, min, max int) int {
	return parse(p, key, def, fmt.Sprintf("a whole number from %d to %d", min, max), func(s string) (int, bool) {
		n, err := strconv.Atoi(s)
		return n, err == nil && n >= min && n <= max
	})
}

// parse returns the parameter's value, or def. If f reports false, want says what is expected.
func parse[T any](p *Params, key string, def T, want string, f func(string) (T, bool)) T {
	s := p.String(key, "")
	if !p.values.Has(key) {
		return def
	}
	v, ok := f(s)
	if !ok {
		p.fail("parameter %s=%s: want %s", key, s, want)
	}
	return v
}

func (p *Params) fail(format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf(format, args...))
}

// Err returns ErrInvalid with everything that is wrong, including unknown parameters, or nil.
func (p *Params) Err() error {
	for _, key := range slices.Sorted(maps.Keys(p.values)) {
		if !slices.Contains(p.known, key) {
			known := list(p.known)
			if strings.ContainsFunc(key, func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') }) {
				// It may be a piece of a password with a question mark in it.
				p.fail("a parameter that is not a word; known: %s; characters such as / # ? @ in a password must be %%-encoded", known)
				continue
			}
			p.fail("unknown parameter %q; known: %s", key, known)
		}
	}
	if len(p.errs) == 0 {
		return nil
	}
	return fmt.Errorf("%w: URL: %w", ErrInvalid, errors.Join(p.errs...))
}

// ParseURL parses a URL as Open does: like url.Parse, but several hosts, divided by
// commas, may stand where one would; URL.Host then has them all (see Hosts). The error
// is ErrInvalid and quotes nothing, for there may be a password in it.
func ParseURL(rawURL string) (*url.URL, error) {
	u, err := parseHosts(rawURL)
	if err == nil {
		err = checkHosts(u)
	}
	if err != nil {
		return nil, malformed(rawURL, err)
	}
	return u, nil
}

// parseHosts is url.Parse for a URL that may have several hosts.
func parseHosts(rawURL string) (*url.URL, error) {
	before, hosts, after := cutHosts(rawURL)
	if !strings.Contains(hosts, ",") {
		return url.Parse(rawURL)
	}
	for _, host := range strings.Split(hosts, ",") {
		one, err := url.Parse("scheme://" + host)
		if err == nil && one.Hostname() == "" {
			err = errors.New("a host is missing in the list of hosts")
		}
		if err != nil {
			return nil, err
		}
	}
	u, err := url.Parse(before + "host" + after)
	if err != nil {
		return nil, err
	}
	u.Host = hosts
	return u, nil
}

// checkHosts refuses what is likely to be a user and a password that end with a # or a slash. A host would be looked
// up, and be quoted in errors.
func checkHosts(u *url.URL) error {
	for _, host := range strings.Split(u.Host, ",") {
		if !strings.HasPrefix(host, "[") && strings.Count(host, ":") > 1 {
			return errors.New("a host has two colons; an IPv6 address has brackets")
		}
	}
	if u.Host != "" && strings.Contains(u.Fragment, "@") {
		return errors.New("there is an @ behind a #")
	}
	return nil
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
	for _, part := range strings.Split(u.Host, ",") {
		one := url.URL{Host: part}
		addrs = append(addrs, net.JoinHostPort(cmp.Or(one.Hostname(), "localhost"), cmp.Or(one.Port(), defaultPort)))
	}
	return addrs
}

// malformed says what is wrong with a URL without quoting it: url.Error quotes all of
// it, and causes such as `invalid port ":secret" after host` a piece.
func malformed(rawURL string, err error) error {
	if ue := (*url.Error)(nil); errors.As(err, &ue) {
		err = ue.Err
	}
	cause, _, _ := strings.Cut(err.Error(), "\"")
	want := "want one such as redis://localhost:6379"
	if strings.Contains(rawURL, "@") {
		want = "characters such as / # ? @ in a password must be %-encoded"
	}
	return fmt.Errorf("%w: malformed URL (%s; %s)", ErrInvalid, strings.TrimSpace(cause), want)
}

// Redact hides the password of a URL, for messages. A text that can't be parsed, or may hold
// a password in another place, becomes its scheme alone.
func Redact(rawURL string) string {
	u, err := ParseURL(rawURL)
	// An @ further on is likely to end a password with a slash or question mark in it. A text without a scheme
	// may be the words of another library.
	if err != nil || strings.Contains(u.Opaque+u.Path+u.RawQuery+u.Fragment, "@") || u.Scheme == "" && isSecret(u.Path) {
		scheme, _, ok := strings.Cut(rawURL, ":")
		if !ok || isSecret(scheme) {
			return "…"
		}
		return scheme + ":…"
	}
	q := u.Query()
	for key := range q {
		if isSecret(key) {
			q.Set(key, "xxxxx")
			continue
		}
		for i, value := range q[key] {
			if strings.Contains(value, "://") {
				q[key][i] = Redact(value) // the URL of a member, for example
			}
		}
	}
	u.RawQuery = q.Encode()
	_, hasPassword := u.User.Password()
	scheme := strings.TrimPrefix(u.Scheme, "quorum+")
	if u.User != nil && !hasPassword && (strings.HasPrefix(scheme, "http") || strings.HasPrefix(scheme, "redis")) {
		u.User = url.User("xxxxx") // a password or a token without its colon
	}
	return u.Redacted()
}

// isSecret reports whether a parameter of this name may be a secret. The path of a file is none.
func isSecret(key string) bool {
	key = strings.ToLower(key)
	return !strings.HasSuffix(key, "_file") && (strings.Contains(key, "pass") || strings.Contains(key, "secret") || strings.Contains(key, "token") || strings.Contains(key, "auth"))
}
