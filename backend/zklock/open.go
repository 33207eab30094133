package zklock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/zk"
)

func init() {
	for _, s := range []string{scheme, secureScheme} {
		driver.Register(s, func(ctx context.Context, u *url.URL) (driver.Backend, error) { return openURL(ctx, u) })
	}
}

// Open connects to the servers of a URL; the package's comment tells its form. It returns
// when one of them has answered, or ctx has ended, or the timeout passed. Servers that
// are too old, a chroot that does not exist, and a user whom they refuse, are ErrInvalid.
func Open(ctx context.Context, rawURL string) (*Backend, error) {
	u, err := driver.ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	if u.Scheme != scheme && u.Scheme != secureScheme {
		return nil, fmt.Errorf("%w: want a URL such as zk://host1:2181,host2:2181/chroot, with %%-encoded user and password", driver.ErrInvalid)
	}
	return openURL(ctx, u)
}

func openURL(ctx context.Context, u *url.URL) (*Backend, error) {
	o, err := readURL(u)
	if err != nil {
		return nil, err
	}
	opening, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	least, most, err := o.learn(opening)
	if err != nil {
		switch {
		case ctx.Err() != nil:
			err = fmt.Errorf("%w: %w", ctx.Err(), err)
		case opening.Err() != nil:
			err = fmt.Errorf("no answer within %v: %w", o.timeout, o.tell(err))
		default:
			err = o.tell(err)
		}
		return nil, fmt.Errorf("zklock: open %s: %w", o.name, err)
	}
	return newBackend(o, least, most), nil
}

// Timeouts that no server grants.
const (
	tooShort = time.Millisecond
	tooLong  = 24 * 24 * time.Hour // in ms it just is an int32
)

// learn asks for sessions that are too long and too short, and is told what the servers
// make of that.
func (o *options) learn(ctx context.Context) (least, most time.Duration, err error) {
	all := o.config(tooLong)
	all.Chroot = ""
	if most, err = o.probe(ctx, all, "/"+reserved+"/config"); err != nil {
		return 0, 0, err
	}
	for {
		// The servers answer: but so short a session may end before it is told of, or asked.
		least, err = o.probe(ctx, o.config(tooShort))
		if err == nil || o.never(err) != "" || ctx.Err() != nil {
			return least, most, err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// probe makes a session for a moment. Nodes that it looks for have been there since 3.5,
// which also brought what else is needed.
func (o *options) probe(ctx context.Context, config zk.Config, nodes ...string) (time.Duration, error) {
	c, err := zk.Dial(ctx, config)
	if err != nil {
		return 0, err
	}
	defer func() {
		bye, cancel := context.WithTimeout(ctx, goodbye)
		defer cancel()
		c.Close(bye) // without an answer the session ends by its timeout
	}()
	for _, node := range nodes {
		_, _, err := c.Get(ctx, node)
		if errors.Is(err, zk.ErrNoNode) {
			return 0, fmt.Errorf("%w: %s", driver.ErrInvalid, tooOld)
		}
		if err != nil && !errors.Is(err, zk.ErrNoAuth) {
			return 0, err
		}
	}
	return c.Timeout(), nil
}

// tell puts what the network said into words for people.
func (o *options) tell(err error) error {
	if why := o.never(err); why != "" {
		return fmt.Errorf("%w: %s: %w", driver.ErrInvalid, why, err)
	}
	if driver.Final(err) {
		return err
	}
	hint := ""
	switch record := (tls.RecordHeaderError{}); {
	case errors.As(err, &record):
		hint = "; the servers do not speak TLS there: want zk:// and not zks://"
	case o.tls != nil:
		hint = "; do the servers speak TLS there?"
	case errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET):
		hint = "; do the servers want TLS, as in zks://?"
	}
	return fmt.Errorf("none of %s opened a session: %w%s", strings.Join(o.servers, ", "), err, hint)
}
