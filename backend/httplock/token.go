package httplock

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/netaddr"
)

// token identifies the client to the servers. It is asked for again when a server refuses it. No error contains it.
type token struct {
	credentials netaddr.Credentials
	asking      chan struct{} // has room for the one call that asks for it

	mu    sync.Mutex
	value string // "": none
}

// readToken returns the token of a URL, which is its password, or of credentials if they are not nil.
func readToken(u *url.URL, p *driver.Params, credentials netaddr.Credentials) (*token, error) {
	inURL, err := netaddr.Login(u, p)
	switch {
	case err != nil:
		return nil, err
	case u.User.Username() != "":
		return nil, fmt.Errorf("%w: the URL has a user: want a token without a user, as in https://:TOKEN@host", driver.ErrInvalid)
	case credentials == nil:
		t := newToken(inURL)
		if _, err := t.reread(context.Background(), ""); err != nil {
			return nil, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
		}
		return t, nil
	}
	if _, own, err := inURL(context.Background()); own != "" || err != nil {
		return nil, fmt.Errorf("%w: a token in the URL and OpenOptions.Credentials: want one of them", driver.ErrInvalid)
	}
	return newToken(credentials), nil
}

func newToken(credentials netaddr.Credentials) *token {
	return &token{credentials: credentials, asking: make(chan struct{}, 1)}
}

// reread asks for the token again, unless another call has done so since, and reports whether it is another one than the
// one that was sent.
func (t *token) reread(ctx context.Context, sent string) (changed bool, err error) {
	select {
	case t.asking <- struct{}{}:
		defer func() { <-t.asking }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	if t.current() != sent {
		return true, nil
	}
	_, value, err := t.credentials(ctx)
	if err != nil {
		return false, err
	}
	if !isToken(value) {
		return false, errNoToken
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.value = value
	return value != sent, nil
}

var errNoToken = errors.New("the token: want ASCII letters, digits and signs, without spaces")

func isToken(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

func (t *token) current() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.value
}

// show adds the token to a request, and returns it.
func (t *token) show(h http.Header) (sent string) {
	sent = t.current()
	if sent != "" {
		h.Set("Authorization", "Bearer "+sent)
	}
	return sent
}
