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
	token     func() (string, error)

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
	resp, err := c.send(ctx, verb, path, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body) // all, or the connection serves no other request
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return fmt.Errorf("%s answers what is no JSON of its API: %w", c.server.Host, err)
	}
	return nil
}

const versionVerb = "get the version"

// probe wants an API server to answer.
func (c *client) probe(ctx context.Context) error {
	var version struct{ GitVersion string }
	err := c.call(ctx, versionVerb, "/version", nil, &version)
	if err == nil && version.GitVersion == "" {
		err = fmt.Errorf("%w: what answers is no API server of Kubernetes", driver.ErrInvalid)
	}
	return err
}

// send makes one request. An answer that it returns is a success, whose body is open. ErrUnsent: nothing was taken.
func (c *client) send(ctx context.Context, verb, path string, body any) (*http.Response, error) {
	if until := c.busy.Load(); until != nil {
		if err := wait.Sleep(ctx, time.Until(*until)); err != nil {
			return nil, driver.Unsent(err)
		}
	}
	var text io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, driver.Unsent(err)
		}
		text = bytes.NewReader(b)
	}
	connected := false
	trace := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected = true }})
	req, err := http.NewRequestWithContext(trace, methods[verb], strings.TrimSuffix(c.server.String(), "/")+path, text)
	if err != nil {
		return nil, driver.Unsent(err)
	}
	token, err := c.token()
	if err != nil {
		return nil, driver.Unsent(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Content-Type", "application/json")
	transport, problem := c.transport.Now() // while files can't be used, as they were
	resp, err := transport.RoundTrip(req)
	switch {
	case err != nil && problem != nil:
		err = fmt.Errorf("%s: %w; the files of its certificates can't be used: %w", c.server.Host, err, problem)
	case err != nil:
		err = fmt.Errorf("%s: %w", c.server.Host, err)
	case resp.StatusCode >= 300:
		defer resp.Body.Close()
		return nil, c.refusal(verb, resp)
	}
	if !connected {
		err = driver.Unsent(err)
	}
	c.worked.CompareAndSwap(false, err == nil && verb != versionVerb)
	return resp, err
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
	case code == http.StatusNotFound && verb == "get" && status.Details.Kind == "leases":
		return errAbsent
	case code == http.StatusTooManyRequests:
		after, bad := time.ParseDuration(resp.Header.Get("Retry-After") + "s")
		if bad != nil || after > longestPause {
			after = longestPause
		}
		until := time.Now().Add(after)
		c.busy.Store(&until)
	case code == http.StatusUnauthorized:
		err = fmt.Errorf("%w (its login has ended, or is another cluster's)", err)
	case code == http.StatusForbidden && strings.Contains(status.Message, "cannot "+verb+" "):
		err = fmt.Errorf("%w (a Role in namespace %s with the verb %s for the resource leases of coordination.k8s.io allows it)", err, c.namespace, verb)
	case code == http.StatusNotFound && verb == "create":
		err = fmt.Errorf("%w (want a namespace that exists, not %s)", err, c.namespace)
	case code >= 500, code == http.StatusRequestTimeout:
		return err // it may have taken effect
	}
	if first := !c.worked.Load(); first && (resp.StatusCode <= http.StatusNotFound && resp.StatusCode != http.StatusBadRequest) {
		return fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	return driver.Unsent(err)
}
