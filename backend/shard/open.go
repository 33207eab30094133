package shard

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/lazymember"
	"github.com/distlock/distlock/internal/wait"
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
	members, urls, opts, err := parseURL(u)
	if err != nil {
		return nil, err
	}
	if err := openAll(ctx, members, urls); err != nil {
		return nil, err
	}
	b, err := New(ctx, members, opts)
	if err != nil {
		closeAll(members)
		return nil, err
	}
	return b, nil
}

// parseURL returns the members, without backends yet, and their URLs.
func parseURL(u *url.URL) ([]Member, []string, *Options, error) {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("%w: URL: malformed query", driver.ErrInvalid)
	}
	if u.Host != "" || u.Opaque != "" || u.Path != "" || u.User != nil || u.Fragment != "" || len(query["member"]) == 0 {
		return nil, nil, nil, fmt.Errorf("%w: %s", driver.ErrInvalid, form)
	}
	var members []Member
	var urls []string
	for _, state := range []struct {
		key string
		State
	}{{"member", Staying}, {"joining", Joining}, {"leaving", Leaving}} {
		for _, value := range query[state.key] {
			name, raw, ok := strings.Cut(value, "=")
			if !ok || strings.Contains(name, ":") {
				return nil, nil, nil, fmt.Errorf("%w: a %s has no name; %s", driver.ErrInvalid, state.key, form)
			}
			members, urls = append(members, Member{Name: name, State: state.State}), append(urls, raw)
		}
		query.Del(state.key)
	}
	p := driver.NewParams(&url.URL{RawQuery: query.Encode()})
	opts := &Options{Group: p.String("group", ""), Record: p.Duration("record", 0)}
	return members, urls, opts, p.Err()
}

// openAll opens all members at once. Lazy members replace those that are down.
func openAll(ctx context.Context, members []Member, urls []string) error {
	errs := make([]error, len(members))
	var wg wait.Group
	opening, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	for i := range members {
		wg.Go(func() { members[i].Backend, errs[i] = driver.Open(opening, urls[i]) })
	}
	wg.Wait()
	var wrong []error
	var caps []driver.Caps
	final := false
	for i, err := range errs {
		if err != nil {
			wrong, final = append(wrong, fmt.Errorf("shard: member %s: %w", members[i].Name, err)), final || driver.Final(err)
			continue
		}
		caps = append(caps, members[i].Backend.Caps())
	}
	if final || len(caps) <= len(members)/2 {
		closeAll(members)
		return errors.Join(wrong...)
	}
	for i, err := range errs {
		if err != nil {
			members[i].Backend = lazyMember(members[i].Name, urls[i], caps, err)
		}
	}
	return nil
}

// openTimeout bounds the opening of the members.
const openTimeout = 5 * time.Second

// lazyMember returns a member that is opened later. It must be able to do what all others can.
func lazyMember(name, url string, others []driver.Caps, err error) driver.Backend {
	want := others[0]
	for _, c := range others {
		want = want.Intersect(c)
	}
	want.Name, want.Poll = name, 0
	return lazymember.New(url, want, func(c driver.Caps) error {
		both := want.Intersect(c)
		if both.Poll = 0; both != want || c.Session != want.Session {
			return fmt.Errorf("%w: it can do less than the other members: %+v, want %+v", driver.ErrUnsupported, c, want)
		}
		return nil
	}, err)
}

func closeAll(members []Member) {
	for _, m := range members {
		if m.Backend != nil {
			m.Backend.Close()
		}
	}
}
