// Token is a fleet that shares one access token of somebody else's service. The token
// ends after a while, and whoever is refused renews it with the refresh token. That
// gives a new pair of tokens and voids the old pair; a refresh token that comes a second
// time looks like a theft, and the service then voids everything.
//
// All hosts are refused in the same moment. Without a lock each of them refreshes, the
// second with a token that the first has voided, and the fleet is logged out. Under a
// lock the first refreshes; the others look again once they have the lock, see the new
// token, and use it.
package main

import (
	"context"
	"errors"

	"github.com/distlock/distlock/examples/internal/story"
)

const hosts = 5

func main() {
	story.Main(func(ctx context.Context, s *story.Story) error {
		s.Title("The token has ended, and everybody refreshes it")
		if _, _, err := tell(ctx, s, refresh); err != nil {
			return err
		}
		s.Title("The token has ended, and everybody wants to refresh it under a lock")
		_, _, err := tell(ctx, s, refreshLocked)
		return err
	})
}

// refresh replaces the tokens that were refused, and returns those to go on with.
func refresh(_ context.Context, h *story.Host, f *fleet, refused tokens) (tokens, error) {
	fresh, err := f.service.refresh(refused.refresh)
	if err != nil {
		return tokens{}, err
	}
	f.save(fresh)
	h.Say("has refreshed the token: %s", fresh.access)
	return fresh, nil
}

// refreshLocked is the same for one host at a time, and only if nobody has done it.
func refreshLocked(ctx context.Context, h *story.Host, f *fleet, refused tokens) (now tokens, err error) {
	err = h.Mutex("token:their-service").Do(ctx, func(ctx context.Context) error {
		if now = f.load(); now != refused {
			h.Say("sees that somebody has: %s", now.access)
			return nil
		}
		now, err = refresh(ctx, h, f, refused)
		return err
	})
	return now, err
}

// refresher is what a host does whose tokens were refused.
type refresher func(ctx context.Context, h *story.Host, f *fleet, refused tokens) (tokens, error)

// tell has all hosts refused at once, and returns how often the service was asked to
// refresh and how many hosts it serves in the end.
func tell(ctx context.Context, s *story.Story, refresh refresher) (refreshes, served int, err error) {
	all, err := s.Hosts(ctx, hosts)
	if err != nil {
		return 0, 0, err
	}
	f := newFleet()
	refused := f.load()
	f.service.end(refused.access)
	s.Say("service", "refuses %s", refused.access)
	err = story.Together(all, func(h *story.Host) error {
		_, err := refresh(ctx, h, f, refused)
		if errors.Is(err, errTheft) {
			h.Say("is told: %v", err)
			return nil
		}
		return err
	})
	if f.service.call(f.load().access) {
		served = hosts
	}
	s.Say("service", "refreshes: %d; hosts it serves: %d of %d", f.service.refreshes, served, hosts)
	return f.service.refreshes, served, err
}
