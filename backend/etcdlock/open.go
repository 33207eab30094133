package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/netaddr"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func init() {
	for _, scheme := range schemes {
		driver.Register(scheme, func(ctx context.Context, u *url.URL) (driver.Backend, error) { return openURL(ctx, u) })
	}
}

const defaultTimeout = 5 * time.Second

// Open connects to the servers of a URL; the package's comment tells its forms. It
// returns when a server has answered that has a leader, or none does, or ctx has ended, or
// the timeout passed. A wrong user or password, and servers that are too old, are
// ErrInvalid. What the user may do with which keys is found out with the first lock.
func Open(ctx context.Context, rawURL string) (*Backend, error) {
	u, err := driver.ParseURL(rawURL)
	if err != nil || !slices.Contains(schemes, u.Scheme) {
		return nil, fmt.Errorf("%w: want a URL such as etcd://localhost:2379/locks, with %%-encoded user and password", driver.ErrInvalid)
	}
	return openURL(ctx, u)
}

func openURL(ctx context.Context, u *url.URL) (*Backend, error) {
	t, err := parseURL(u)
	if err != nil {
		return nil, err
	}
	opening, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	b, err := t.open(opening)
	if err != nil {
		switch {
		case ctx.Err() != nil && !errors.Is(err, ctx.Err()):
			err = fmt.Errorf("%w: %w", ctx.Err(), err)
		case ctx.Err() == nil && opening.Err() != nil:
			err = fmt.Errorf("no answer within %v: %w", t.timeout, err)
		}
		return nil, fmt.Errorf("etcdlock: open %s://%s: %w", t.scheme, netaddr.Listed(t.addrs), err)
	}
	return b, nil
}

func (t *urlConfig) open(ctx context.Context) (*Backend, error) {
	if err := t.probe(ctx); err != nil {
		return nil, err
	}
	most, cancel := mostOf(ctx)
	defer cancel()
	b, err := t.start(most)
	if err = explain(err); err == nil || driver.Final(err) {
		return b, err
	}
	// A server may have lost its leader without knowing it at first.
	if why := t.probe(ctx); why != nil {
		return nil, why
	}
	return nil, err
}

// mostOf leaves a quarter of the time for finding out what went wrong.
func mostOf(ctx context.Context) (context.Context, context.CancelFunc) {
	end, _ := ctx.Deadline()
	return context.WithDeadline(ctx, end.Add(-time.Until(end)/4))
}

func (t *urlConfig) start(ctx context.Context) (*Backend, error) {
	client, end, err := t.connect(ctx)
	if err != nil {
		return nil, err
	}
	b, err := newCheckedBackend(ctx, client, t.opts)
	if err != nil {
		end()
		return nil, err
	}
	b.closeClient = end
	return b, nil
}

// connect makes a client that is logged in, and what ends it. It lives on when ctx ends
// later.
func (t *urlConfig) connect(ctx context.Context) (client *clientv3.Client, end func(), err error) {
	life, cancel := context.WithCancel(context.Background())
	stop := context.AfterFunc(ctx, cancel)
	client, err = clientv3.New(t.config(life))
	end = func() {
		if client != nil {
			client.Close()
		}
		cancel()
	}
	if !stop() {
		err = ctx.Err() // the client knows of its own context only
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	return client, end, nil
}
