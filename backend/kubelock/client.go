package kubelock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/netaddr"
	"github.com/distlock/distlock/internal/record"
	"github.com/distlock/distlock/internal/wait"
)

// client speaks to an API server, by HTTP/1.1: a request without an answer ends its connection, and others go on.
type client struct {
	server    *url.URL
	namespace string
	transport *netaddr.Files[*http.Transport] // of the files of TLS
	token     *netaddr.Files[string]

	worked atomic.Bool               // a request for a Lease was answered
	busy   atomic.Pointer[time.Time] // until when the server wants no requests
}

// methods are the methods of verbs; of all others it is GET.
var methods = map[string]string{"create": http.MethodPost, "update": http.MethodPut}

// errAbsent says that there is no Lease of this name.
var errAbsent = errors.New("there is no such Lease")

// leases returns the path of a Lease, or of all.
func (c *client) leases(name string) string {
	return "/apis/coordination.k8s.io/v1/namespaces/" + c.namespace + "/leases" + strings.TrimSuffix("/"+name, "/")
}

// call makes one request, and reads the answer into one of its type.
func (c *client) call(ctx context.Context, verb, path string, body, into any) error {
	resp, err := c.send(ctx, verb, path, nil, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return fmt.Errorf("%s answers what is no JSON of its API: %w", c.server.Host, err)
	}
	return nil
}

// send makes one request. An answer that it returns is a success, whose body is open. ErrUnsent: nothing was taken.
func (c *client) send(ctx context.Context, verb, path string, query url.Values, body any) (*http.Response, error) {
	if until := c.busy.Load(); until != nil {
		if err := wait.Sleep(ctx, time.Until(*until)); err != nil {
			return nil, driver.Unsent(err)
		}
	}
	connected := false
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected = true }}
	req, err := c.request(httptrace.WithClientTrace(ctx, trace), verb, path, query, body)
	if err != nil {
		return nil, driver.Unsent(err)
	}
	transport, _ := c.transport.Now() // while files can't be used, as they were
	resp, err := transport.RoundTrip(req)
	switch {
	case err != nil && !connected:
		return nil, driver.Unsent(fmt.Errorf("%s: %w%s", c.server.Host, err, c.hint()))
	case err != nil:
		return nil, fmt.Errorf("%s: %w", c.server.Host, err)
	case resp.StatusCode >= 300:
		defer resp.Body.Close()
		return nil, c.refusal(verb, resp)
	}
	if verb != versionVerb {
		c.worked.Store(true)
	}
	return resp, nil
}

func (c *client) request(ctx context.Context, verb, path string, query url.Values, body any) (*http.Request, error) {
	var text io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		text = bytes.NewReader(b)
	}
	to := c.server.JoinPath(path)
	to.RawQuery = query.Encode()
	method := methods[verb]
	req, err := http.NewRequestWithContext(ctx, method, to.String(), text)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Content-Type", "application/json")
	token, err := c.token.Now()
	if token == "" {
		return req, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	return req, nil
}

// hint says which files of TLS can't be used.
func (c *client) hint() string {
	if _, problem := c.transport.Last(); problem != nil {
		return fmt.Sprintf("; the files of its certificates can't be used: %v", problem)
	}
	return ""
}

// longestPause bounds what the server may ask for: a renewal can't wait.
const longestPause = time.Second

// refusal returns what an answer says that is no success.
func (c *client) refusal(verb string, resp *http.Response) error {
	var status struct {
		Message string
		Details struct{ Kind string }
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if json.Unmarshal(text, &status) != nil || status.Message == "" {
		status.Message = strings.TrimSpace(string(text[:min(len(text), 200)]))
	}
	err := fmt.Errorf("%s answers %s: %s", c.server.Host, resp.Status, status.Message)
	switch code := resp.StatusCode; {
	case code == http.StatusConflict, code == http.StatusNotFound && verb == "update":
		return fmt.Errorf("%w: %w", record.ErrConflict, err)
	case code == http.StatusNotFound && status.Details.Kind == "leases":
		return errAbsent
	case code == http.StatusNotFound, code == http.StatusUnauthorized, code == http.StatusForbidden:
		if err = fmt.Errorf("%w%s", err, c.advice(verb, code, status.Message)); !c.worked.Load() {
			return fmt.Errorf("%w: %w", driver.ErrInvalid, err)
		}
		return driver.Unsent(err)
	case code == http.StatusTooManyRequests:
		until := time.Now().Add(longestPause)
		if after, bad := time.ParseDuration(resp.Header.Get("Retry-After") + "s"); bad == nil && after < longestPause {
			until = time.Now().Add(after)
		}
		c.busy.Store(&until)
		return driver.Unsent(err)
	case code < 500 && code != http.StatusRequestTimeout:
		return driver.Unsent(err)
	}
	return err
}

// advice says what helps against a refusal.
func (c *client) advice(verb string, code int, message string) string {
	switch {
	case code == http.StatusUnauthorized:
		if _, problem := c.token.Last(); problem != nil {
			return fmt.Sprintf(" (the token can't be read again: %v)", problem)
		}
		return " (its login has ended, or is another cluster's)"
	case code == http.StatusForbidden && strings.Contains(message, "cannot "+verb+" "):
		return fmt.Sprintf(" (a Role in namespace %s with the verb %s for the resource leases of coordination.k8s.io allows it)", c.namespace, verb)
	case code == http.StatusNotFound && verb == "create":
		return fmt.Sprintf(" (want a namespace that exists, not %s)", c.namespace)
	}
	return ""
}
