package shard

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/members"
)

func init() {
	driver.Register("shard", func(ctx context.Context, u *url.URL) (driver.Backend, error) { return openURL(ctx, u) })
}

// Open makes a Backend from a URL, whose form is in the package's comment. The members'
// packages must be imported. If a majority of the members can be opened, those that are down
// join later. A member that can never join, for a wrong password say, is an error. Otherwise
// Open is like New.
func Open(ctx context.Context, rawURL string) (*Backend, error) {
	u, err := driver.ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	if u.Scheme != "shard" {
		return nil, fmt.Errorf("%w: %s", driver.ErrInvalid, form)
	}
	return openURL(ctx, u)
}

const form = "URL: want shard:?member=NAME=URL&member=NAME=URL, each NAME=URL %-encoded"

func openURL(ctx context.Context, u *url.URL) (*Backend, error) {
	all, urls, err := parseURL(u)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(all))
	for i, m := range all {
		names[i] = "member " + m.Name
	}
	backends, _, err := members.Open(ctx, names, urls, suffices)
	if err != nil {
		return nil, fmt.Errorf("shard: %w", err)
	}
	for i, b := range backends {
		all[i].Backend = b
	}
	b, err := New(all)
	if err != nil {
		members.CloseAll(backends)
		return nil, err
	}
	for i, m := range all { // what a member that is down calls itself is not known
		at, err := driver.ParseURL(urls[i])
		if err != nil {
			b.Close()
			return nil, err
		}
		names[i] = m.Name + "=" + members.NameOf(at)
	}
	slices.Sort(names)
	b.caps.Name = nameOf(names)
	return b, nil
}

// parseURL returns the members, without backends yet, and their URLs.
func parseURL(u *url.URL) (all []Member, urls []string, err error) {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: URL: malformed query", driver.ErrInvalid)
	}
	if u.Host != "" || u.Opaque != "" || u.Path != "" || u.User != nil || u.Fragment != "" || len(query["member"]) == 0 {
		return nil, nil, fmt.Errorf("%w: %s", driver.ErrInvalid, form)
	}
	for _, value := range query["member"] {
		name, raw, ok := strings.Cut(value, "=")
		if !ok || strings.Contains(name, ":") {
			return nil, nil, fmt.Errorf("%w: a member has no name; %s", driver.ErrInvalid, form)
		}
		all, urls = append(all, Member{Name: name}), append(urls, raw)
	}
	query.Del("member")
	return all, urls, driver.NewParams(&url.URL{RawQuery: query.Encode()}).Err()
}

// suffices reports whether a member can do what all others can.
func suffices(c, want driver.Caps) bool {
	both := want.Intersect(c)
	both.Poll = want.Poll
	return both == want && c.Session == want.Session
}
