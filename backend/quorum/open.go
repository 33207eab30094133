package quorum

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/lazymember"
	"github.com/distlock/distlock/internal/wait"
)

func init() {
	for _, scheme := range []string{"quorum", "quorum+redis", "quorum+rediss"} {
		driver.Register(scheme, func(ctx context.Context, u *url.URL) (driver.Backend, error) { return openURL(ctx, u) })
	}
}

// Open makes a quorum from a URL, whose form is in the package's comment. The members' packages
// must be imported. It succeeds when a majority of the members can be opened; the others join
// later. Otherwise the error says what is wrong with each member. A member that can never join, for
// a wrong password say, is always an error: else it would be missed only when another one fails.
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
	backends, caps, err := openAll(ctx, urls, names)
	if err != nil {
		return nil, err
	}
	b, err := assemble(backends, names, caps, opts)
	if err != nil {
		closeAll(backends)
		return nil, err
	}
	return b, nil
}

// parseURL returns the members' URLs and the quorum's own parameters.
func parseURL(u *url.URL) ([]*url.URL, *Options, error) {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: URL: malformed query", driver.ErrInvalid)
	}
	own := url.Values{}
	for _, key := range []string{"member_timeout", "drift"} {
		if v, ok := query[key]; ok {
			own[key] = v
			delete(query, key)
		}
	}
	members := query["member"]
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
		urls, err = parseMembers(u, members)
	} else {
		urls = splitHosts(u, query)
	}
	return urls, opts, err
}

func parseOptions(query url.Values) (*Options, error) {
	p := driver.NewParams(&url.URL{RawQuery: query.Encode()})
	o := &Options{MemberTimeout: p.Duration("member_timeout", 0)}
	drift := p.String("drift", "")
	if err := p.Err(); err != nil {
		return nil, err
	}
	if drift != "" {
		d, err := strconv.ParseFloat(drift, 64)
		if err != nil || !(d > 0 && d <= 0.5) {
			return nil, fmt.Errorf("%w: URL: parameter drift=%s: want a fraction of the TTL such as 0.01, at most 0.5", driver.ErrInvalid, drift)
		}
		o.Drift = d
	}
	return o, nil
}

// parseMembers returns the URLs in quorum:?member=…&member=….
func parseMembers(u *url.URL, members []string) ([]*url.URL, error) {
	if len(members) == 0 || u.Host != "" || u.Opaque != "" || u.Path != "" || u.User != nil {
		return nil, fmt.Errorf("%w: URL: want quorum:?member=URL&member=URL&member=URL, each URL %%-encoded", driver.ErrInvalid)
	}
	var urls []*url.URL
	for i, raw := range members {
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
		names[i] = (&url.URL{Scheme: u.Scheme, Opaque: u.Opaque, Host: u.Host, Path: u.Path}).String()
		if servers[i] = strings.ToLower(u.Host); servers[i] == "" {
			servers[i] = names[i]
		}
	}
	return names, checkUnique(servers)
}

// openAll opens all members at once. Lazy members replace those that fail, or take much longer
// than a majority.
func openAll(ctx context.Context, urls []*url.URL, names []string) ([]driver.Backend, []driver.Caps, error) {
	backends, errs := make([]driver.Backend, len(urls)), make([]error, len(urls))
	var wg wait.Group
	var opened atomic.Int32
	opening, cancel := context.WithCancel(ctx)
	defer cancel()
	for i, u := range urls {
		wg.Go(func() {
			backends[i], errs[i] = driver.Open(opening, u.String())
			if errs[i] == nil && int(opened.Add(1)) == len(urls)/2+1 {
				time.AfterFunc(longestTimeout, cancel)
			}
		})
	}
	wg.Wait()
	caps, err := checkOpened(backends, errs, names)
	if err != nil {
		closeAll(backends)
		return nil, nil, err
	}
	for i, u := range urls {
		if backends[i] == nil {
			backends[i] = lazyMember(u.String(), caps, errs[i])
		}
	}
	return backends, caps, nil
}

// checkOpened returns the Caps of the members that were opened, if they suffice.
func checkOpened(backends []driver.Backend, errs []error, names []string) ([]driver.Caps, error) {
	var caps []driver.Caps
	var servers []string
	wrong := false
	for i, err := range errs {
		if err != nil {
			wrong = wrong || driver.Final(err)
			continue
		}
		caps = append(caps, backends[i].Caps())
		servers = append(servers, backends[i].Caps().Name)
	}
	majority := len(names)/2 + 1
	switch {
	case len(caps) < majority:
		return nil, fmt.Errorf("quorum: %d of %d members could be opened, need %d: %w", len(caps), len(names), majority, failures(names, errs))
	case wrong:
		return nil, fmt.Errorf("quorum: a member can never join: %w", failures(names, errs))
	}
	return caps, checkUnique(servers)
}

// failures returns the members' errors. Members with the same error share one.
func failures(names []string, errs []error) error {
	of := map[string][]string{}
	for i, err := range errs {
		if err != nil {
			of[err.Error()] = append(of[err.Error()], names[i])
		}
	}
	var failed []error
	for _, err := range errs {
		if err != nil && of[err.Error()] != nil {
			failed = append(failed, fmt.Errorf("%s: %w", strings.Join(of[err.Error()], ", "), err))
			delete(of, err.Error())
		}
	}
	return errors.Join(failed...)
}

func closeAll(backends []driver.Backend) {
	for _, b := range backends {
		if b != nil {
			b.Close()
		}
	}
}

// lazyMember returns a member that is opened later. It must be able to do what the others can.
func lazyMember(url string, others []driver.Caps, err error) *lazymember.Member {
	want := others[0]
	for _, c := range others {
		want = want.Intersect(c)
	}
	return lazymember.New(url, want, func(c driver.Caps) error { return checkCaps(c, want) }, err)
}

// checkCaps returns an error if a member can't do what the quorum has promised.
func checkCaps(c, want driver.Caps) error {
	if both := c.Intersect(want); both.Modes != want.Modes || both.Floor != want.Floor || both.Fence != want.Fence ||
		both.Downgrade != want.Downgrade || both.MinTTL != want.MinTTL || both.MaxTTL != want.MaxTTL {
		return fmt.Errorf("%w: it can do less than the other members: %+v, want %+v", driver.ErrUnsupported, c, want)
	}
	return nil
}
