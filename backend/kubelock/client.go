package kubelock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/netaddr"
	"github.com/distlock/distlock/internal/record"
	"github.com/distlock/distlock/internal/unsent"
)

// client speaks to an API server, by HTTP/1.1: a request without an answer ends its connection, and others go on.
type client struct {
	record.Pace
	server    *url.URL
	namespace string
	transport *netaddr.Files[*http.Transport] // of the files of TLS
	token     func() (string, error)
	worked    atomic.Bool // a request for a Lease was answered
}

// methods are the methods of verbs; of all others it is GET.
var methods = map[string]string{"create": http.MethodPost, "update": http.MethodPut, dryRun: http.MethodPost}

// dryRun is a create that the server does not keep.
const dryRun = "dry run"

// errAbsent says that there is no Lease of this name.
var errAbsent = errors.New("there is no such Lease")

// lease calls for a Lease, or for all.
func (c *client) lease(ctx context.Context, verb, name string, body, into any) error {
	return c.call(ctx, verb, c.leases()+strings.TrimSuffix("/"+name, "/"), body, into)
}

func (c *client) leases() string {
	return "/apis/coordination.k8s.io/v1/namespaces/" + c.namespace + "/leases"
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
	if l, ok := into.(*lease); ok {
		l.read, _ = http.ParseTime(resp.Header.Get("Date"))
	}
	c.worked.CompareAndSwap(false, verb != "" && verb != dryRun)
	return nil
}

// probe wants an API server to answer.
func (c *client) probe(ctx context.Context) error {
	var version struct{ GitVersion string }
	err := c.call(ctx, "", "/version", nil, &version)
	if err == nil && version.GitVersion == "" {
		err = fmt.Errorf("%w: what answers is no API server of Kubernetes", driver.ErrInvalid)
	}
	return err
}

// send makes one request. An answer that it returns is a success, whose body is open. ErrUnsent: nothing was taken.
func (c *client) send(ctx context.Context, verb, path string, body any) (*http.Response, error) {
	text, err := json.Marshal(body)
	if body == nil {
		text = nil
	}
	req, errReq := http.NewRequestWithContext(ctx, methods[verb], strings.TrimSuffix(c.server.String(), "/")+path, bytes.NewReader(text))
	token, errToken := c.token()
	if err := errors.Join(err, errReq, errToken); err != nil {
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
		err = fmt.Errorf("%w; the files of its certificates can't be used: %w", err, problem)
	case err == nil && resp.StatusCode >= 300:
		defer resp.Body.Close()
		err = c.refusal(verb, resp)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.server.Host, unsent.Mark(err))
	}
	c.Answered(false)
	return resp, nil
}

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
	c.Answered(resp.StatusCode == http.StatusTooManyRequests)
	err := fmt.Errorf("%s: %s", resp.Status, status.Message)
	switch code := resp.StatusCode; {
	case code == http.StatusConflict, code == http.StatusNotFound && verb == "update":
		return fmt.Errorf("%w: %w", record.ErrConflict, err)
	case code == http.StatusNotFound && verb == "get" && status.Details.Kind == "leases":
		return errAbsent
	case code >= 500, code == http.StatusRequestTimeout:
		return err // it may have taken effect
	case code == http.StatusUnauthorized:
		err = fmt.Errorf("%w (its login has ended, or is another cluster's)", err)
	case code == http.StatusForbidden && strings.Contains(status.Message, "cannot "+verb+" "):
		err = fmt.Errorf("%w (a Role in namespace %s with the verb %s for the resource leases of coordination.k8s.io allows it)", err, c.namespace, verb)
	case code == http.StatusNotFound && verb == "create":
		err = fmt.Errorf("%w (want a namespace that exists, not %s)", err, c.namespace)
	}
	if !c.worked.Load() && resp.StatusCode != http.StatusBadRequest && resp.StatusCode <= http.StatusNotFound {
		return fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	return record.Refused(err)
}
