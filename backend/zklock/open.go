package zklock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/zk"
)

func init() {
	for _, s := range []string{scheme, secureScheme} {
		driver.Register(s, func(ctx context.Context, u *url.URL) (driver.Backend, error) {
			b, err := openURL(ctx, u)
			if err != nil {
				return nil, err // and not a *Backend that is nil
			}
			return b, nil
		})
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
		if ctx.Err() == nil {
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

// learn asks for sessions that are too short and too long, and is told what the servers
// make of that.
func (o *options) learn(ctx context.Context) (least, most time.Duration, err error) {
	var errs [2]error
	var wg sync.WaitGroup
	wg.Go(func() { least, errs[0] = o.probe(ctx, tooShort) })
	wg.Go(func() { most, errs[1] = o.probe(ctx, tooLong) })
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return 0, 0, err
		}
	}
	return least, most, nil
}

// probe is what the servers make of a timeout. A session that is too short may have ended
// before it is asked anything.
func (o *options) probe(ctx context.Context, timeout time.Duration) (granted time.Duration, err error) {
	for {
		granted, err = o.probeOnce(ctx, timeout)
		if !errors.Is(err, zk.ErrSessionExpired) || ctx.Err() != nil {
			return granted, err
		}
	}
}

// probeOnce makes a session for a moment. The node that it asks for has been there since 3.5,
// which also brought what else is needed.
func (o *options) probeOnce(ctx context.Context, timeout time.Duration) (time.Duration, error) {
	config := o.config(timeout)
	if timeout == tooShort {
		config.Chroot = ""
	}
	c, err := zk.Dial(ctx, config)
	if err != nil {
		return 0, err
	}
	defer func() {
		bye, cancel := context.WithTimeout(ctx, goodbye)
		defer cancel()
		c.Close(bye) // without an answer the session ends by its timeout
	}()
	if timeout == tooShort {
		_, _, err = c.Get(ctx, "/"+reserved+"/config")
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
	hint := ""
	switch record := (tls.RecordHeaderError{}); {
	case driver.Final(err):
		return err
	case errors.As(err, &record):
		hint = "; the servers do not speak TLS there: want zk:// and no zks://"
	case o.tls == nil && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)):
		hint = "; do the servers want TLS, as in zks://?"
	case errors.Is(err, context.DeadlineExceeded):
		hint = fmt.Sprintf("; no answer within %v", o.timeout)
		if o.tls != nil {
			hint += "; do the servers speak TLS there?"
		}
	}
	return fmt.Errorf("none of %s opened a session: %w%s", strings.Join(o.servers, ", "), err, hint)
}
