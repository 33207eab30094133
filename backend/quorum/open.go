package quorum

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/members"
)

func init() {
	for _, scheme := range []string{"quorum", "quorum+redis", "quorum+rediss"} {
		driver.Register(scheme, func(ctx context.Context, u *url.URL) (driver.Backend, error) { return openURL(ctx, u) })
	}
}

// Open makes a quorum from a URL, whose form is in the package's comment. The members' packages
// must be imported. It succeeds when a majority of the members can be opened; the others join
// later. Otherwise the error says what is wrong with each member. A member that can never join, for
// a wrong password say, is always an error: else it would be missed only when another one fails. So are two
// addresses of one server.
func Open(ctx context.Context, rawURL string) (*Backend, error) {
	u, err := driver.ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	if u.Scheme != "quorum" && !strings.HasPrefix(u.Scheme, "quorum+redis") {
		return nil, fmt.Errorf("%w: want a URL such as quorum+redis://host1:6379,host2:6379,host3:6379/0", driver.ErrInvalid)
	}
	return openURL(ctx, u)
}

func openURL(ctx context.Context, u *url.URL) (*Backend, error) {
	urls, opts, err := parseURL(u)
	if err != nil {
		return nil, err
	}
	names, err := memberNames(urls)
	if err != nil {
		return nil, err
	}
	raw := make([]string, len(urls))
	for i, u := range urls {
		raw[i] = u.String()
	}
	backends, caps, err := members.Open(ctx, names, raw, suffices)
	if err != nil {
		return nil, fmt.Errorf("quorum: %w", err)
	}
	servers := make([]string, len(caps))
	for i, c := range caps {
		servers[i] = c.Name
	}
	if err = checkUnique(servers); err == nil {
		var b *Backend
		if b, err = assemble(ctx, backends, names, caps, opts); err == nil {
			return b, nil
		}
	}
	members.CloseAll(backends)
	return nil, err
}

// parseURL returns the members' URLs and the quorum's own parameters.
func parseURL(u *url.URL) ([]*url.URL, *Options, error) {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: URL: malformed query", driver.ErrInvalid)
	}
	own := url.Values{}
	if v, ok := query["member_timeout"]; ok {
		own["member_timeout"] = v
		delete(query, "member_timeout")
	}
	list := query["member"]
	if u.Scheme == "quorum" {
		delete(query, "member")
		for key, v := range query {
			own[key] = v // unknown, so parseOptions refuses it
		}
	}
	opts, err := parseOptions(own)
	if err != nil {
		return nil, nil, err
	}
	var urls []*url.URL
	if u.Scheme == "quorum" {
		urls, err = parseMembers(u, list)
	} else {
		urls = splitHosts(u, query)
	}
	return urls, opts, err
}

func parseOptions(query url.Values) (*Options, error) {
	p := driver.NewParams(&url.URL{RawQuery: query.Encode()})
	o := &Options{MemberTimeout: p.Duration("member_timeout", 0)}
	return o, p.Err()
}

// parseMembers returns the URLs in quorum:?member=…&member=….
func parseMembers(u *url.URL, list []string) ([]*url.URL, error) {
	if len(list) == 0 || u.Host != "" || u.Opaque != "" || u.Path != "" || u.User != nil {
		return nil, fmt.Errorf("%w: URL: want quorum:?member=URL&member=URL&member=URL, each URL %%-encoded", driver.ErrInvalid)
	}
	var urls []*url.URL
	for i, raw := range list {
		m, err := driver.ParseURL(raw)
		if err != nil {
			return nil, fmt.Errorf("URL: member %d: %w", i+1, err)
		}
		urls = append(urls, m)
	}
	return urls, nil
}

// splitHosts returns one URL for each host, with the rest of u.
func splitHosts(u *url.URL, query url.Values) []*url.URL {
	var urls []*url.URL
	for _, host := range driver.Hosts(u, "6379") {
		m := *u
		m.Scheme = strings.TrimPrefix(u.Scheme, "quorum+")
		m.Host, m.RawQuery = host, query.Encode()
		urls = append(urls, &m)
	}
	return urls
}

// memberNames returns names made of the URLs: the Caps of members that are down are not known.
// Two databases of one server are the same member.
func memberNames(urls []*url.URL) ([]string, error) {
	names, servers := make([]string, len(urls)), make([]string, len(urls))
	for i, u := range urls {
		names[i] = members.NameOf(u)
		if servers[i] = strings.ToLower(u.Host); servers[i] == "" {
			servers[i] = names[i]
		}
	}
	return names, checkUnique(servers)
}

// suffices reports whether a member can do what the quorum has promised.
func suffices(c, want driver.Caps) bool {
	both := c.Intersect(want)
	return both.Modes == want.Modes && both.Floor == want.Floor && both.Fence == want.Fence && both.MinTTL == want.MinTTL && both.MaxTTL == want.MaxTTL
}
