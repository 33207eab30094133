package httplock

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"

	"github.com/distlock/distlock/driver"
)

// token identifies the client to the servers. No error contains it.
type token struct {
	file string

	mu    sync.Mutex
	value string // "": none
}

func readToken(u *url.URL, p *driver.Params) (*token, error) {
	password, _ := u.User.Password()
	t := &token{file: p.String("token_file", ""), value: password}
	switch {
	case u.User.Username() != "":
		return nil, fmt.Errorf("%w: the URL has a user: want a token without a user, as in https://:TOKEN@host", driver.ErrInvalid)
	case t.file != "" && t.value != "":
		return nil, fmt.Errorf("%w: a token in the URL and parameter token_file: want one of them", driver.ErrInvalid)
	case t.file != "":
		_, err := t.reread("")
		return t, err
	case !isToken(t.value) && t.value != "":
		return nil, fmt.Errorf("%w: the token in the URL: want ASCII letters, digits and signs, without spaces", driver.ErrInvalid)
	}
	return t, nil
}

// reread reads the file again, if there is one. It reports whether the token is another one than the one that was sent.
func (t *token) reread(sent string) (changed bool, err error) {
	if t.file == "" {
		return false, nil
	}
	text, err := os.ReadFile(t.file)
	value := strings.TrimSpace(string(text))
	if err == nil && !isToken(value) {
		err = fmt.Errorf("it does not contain one token")
	}
	if err != nil {
		return false, fmt.Errorf("%w: parameter token_file=%s: %w", driver.ErrInvalid, t.file, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.value = value
	return value != sent, nil
}

func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// show adds the token to a request, and returns it.
func (t *token) show(h http.Header) (sent string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.value != "" {
		h.Set("Authorization", "Bearer "+t.value)
	}
	return t.value
}
