package kubelock

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/record"
)

const scheme = "kube"

func init() {
	driver.Register(scheme, func(ctx context.Context, u *url.URL) (driver.Backend, error) { return openURL(ctx, u) })
}

// Backend keeps locks in Leases. It is safe for concurrent use.
type Backend struct {
	locks
	leases *store
}

type locks = record.Pushing

// Open connects to the cluster of a URL, whose form is in the package comment. It returns when its API server has answered, ctx
// has ended, or the URL's timeout has passed. It returns ErrInvalid if the server refuses the login.
func Open(ctx context.Context, rawURL string) (*Backend, error) {
	u, err := driver.ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	return openURL(ctx, u)
}

func openURL(ctx context.Context, u *url.URL) (*Backend, error) {
	p := driver.NewParams(u)
	timeout, prefix, file := p.Duration("timeout", 5*time.Second), p.String("prefix", ""), p.String("kubeconfig", "")
	clock := p.Choice("clock", "on", "off")
	namespace, err := strings.Trim(u.Path, "/"), p.Err()
	odd := u.Opaque != "" || u.Host != "" || u.User != nil || u.Fragment != "" || strings.ContainsAny(namespace, "/.")
	if odd || u.Scheme != scheme || names.Encode(namespace) != namespace {
		err = fmt.Errorf("%w: want a URL such as kube:///namespace, with three slashes; the cluster stands in the kubeconfig", driver.ErrInvalid)
	}
	if err != nil {
		return nil, err
	}
	c, err := newClient(file, namespace)
	if err != nil {
		return nil, fmt.Errorf("kubelock: open: %w: %w", driver.ErrInvalid, err)
	}
	name := scheme + "://" + c.server.Host + "/" + c.namespace + "/"
	opening, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	s := &store{client: c, prefix: prefix, now: time.Now}
	caps := driver.Caps{Name: name + prefix, MinTTL: time.Second, Poll: time.Second}
	err = c.probe(opening)
	if err == nil && clock == "on" {
		s.clock, err = s.dryRun(opening)
	}
	if s.clock {
		caps.Late = record.Late
	}
	if err != nil {
		if ctx.Err() == nil && opening.Err() != nil {
			err = fmt.Errorf("no answer within %v: %w", timeout, err)
		}
		return nil, fmt.Errorf("kubelock: open %s: %w", name, err)
	}
	s.life, s.stop = context.WithCancel(context.Background())
	return &Backend{locks{Backend: record.New(s, caps)}, s}, nil
}
