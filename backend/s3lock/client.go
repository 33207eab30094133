package s3lock

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/unsent"
)

// maxBody is how much of an answer is read. A record with a name of a megabyte is smaller.
const maxBody = 8 << 20

// client sends signed requests for one bucket.
type client struct {
	base   url.URL // of the bucket, without a slash at its end
	region string
	creds  aws.CredentialsProvider
	signer *v4.Signer
	http   *http.Client
	skew   atomic.Int64 // how far the store's clock is ahead of this one, in ns
}

// answer is what the store says to a request.
type answer struct {
	status int
	header http.Header
	body   []byte
	code   string // of an error
	text   string // of an error
}

// do sends one request. An error means that there is no answer. A store that finds the time of the signature wrong has
// done nothing, and says what the time is.
func (c *client) do(ctx context.Context, method, key string, query url.Values, header http.Header, body []byte) (answer, error) {
	a, err := c.send(ctx, method, key, query, header, body)
	if err != nil || a.code != "RequestTimeTooSkewed" {
		return a, err
	}
	theirs, err := http.ParseTime(a.header.Get("Date"))
	if err != nil {
		return a, nil
	}
	c.skew.Store(int64(time.Until(theirs)))
	return c.send(ctx, method, key, query, header, body)
}

func (c *client) send(ctx context.Context, method, key string, query url.Values, header http.Header, body []byte) (answer, error) {
	creds, err := c.creds.Retrieve(ctx)
	if err != nil {
		return answer{}, driver.Unsent(fmt.Errorf("AWS's chain of credentials (environment, profile, web identity, container, instance): %w", err))
	}
	req, err := http.NewRequestWithContext(ctx, method, "", bytes.NewReader(body))
	if err != nil {
		return answer{}, driver.Unsent(err)
	}
	req.URL = c.url(key, query)
	for name, values := range header {
		req.Header[name] = values
	}
	hash := sha256.Sum256(body)
	sum := hex.EncodeToString(hash[:])
	req.Header.Set("X-Amz-Content-Sha256", sum)
	now := time.Now().Add(time.Duration(c.skew.Load()))
	if err := c.signer.SignHTTP(ctx, creds, req, sum, "s3", c.region, now); err != nil {
		return answer{}, driver.Unsent(err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return answer{}, unsent.Mark(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return answer{}, err
	}
	a := answer{status: resp.StatusCode, header: resp.Header, body: text}
	if a.status >= 300 {
		var e struct{ Code, Message string }
		_ = xml.Unmarshal(text, &e) // a proxy's page has neither
		a.code, a.text = e.Code, e.Message
	}
	return a, nil
}

// url returns the address of an object, or of the bucket. Its path is escaped as the signature has it.
func (c *client) url(key string, query url.Values) *url.URL {
	u := c.base
	if key != "" || u.Path == "" {
		u.Path += "/" + key
	}
	var raw strings.Builder
	for i := range len(u.Path) {
		if b := u.Path[i]; isPlain(b) || strings.IndexByte("/.~", b) >= 0 {
			raw.WriteByte(b)
		} else {
			fmt.Fprintf(&raw, "%%%02X", b)
		}
	}
	u.RawPath, u.RawQuery = raw.String(), query.Encode()
	return &u
}

// actions are the rights that the calls need, by method. Without s3:ListBucket an object that does not exist is forbidden too.
var actions = map[string]string{
	http.MethodPut:    "s3:PutObject and, for conditions, s3:GetObject",
	http.MethodGet:    "s3:GetObject and s3:ListBucket",
	http.MethodDelete: "s3:DeleteObject, of which Open's probe makes use",
}

// refused returns the error for an answer that is none of those that the caller expects. The store has done nothing if
// it is about who asks, or for what.
func (c *client) refused(method string, a answer) error {
	err := fmt.Errorf("%s at %s: %d %s: %s", method, c.base.Redacted(), a.status, cmp.Or(short(a.code), http.StatusText(a.status)), short(a.text))
	region := a.header.Get("X-Amz-Bucket-Region")
	switch {
	case a.status >= http.StatusInternalServerError, a.status == http.StatusRequestTimeout, a.busy():
		return err // it may have been done
	case region != "" && region != c.region:
		err = fmt.Errorf("%w; the bucket is in region %s, and the URL or AWS says %s: want ?region=%[2]s", err, short(region), c.region)
	case a.status < http.StatusBadRequest:
		err = fmt.Errorf("%w; the bucket is elsewhere (%s): want another region or endpoint", err, short(a.header.Get("Location")))
	case a.status == http.StatusForbidden:
		err = fmt.Errorf("%w; the credentials need %s", err, actions[method])
	case a.code == "NoSuchBucket":
		err = fmt.Errorf("%w; make the bucket first", err)
	}
	return driver.Unsent(err)
}

// short returns the beginning of a text of the store's.
func short(text string) string { return text[:min(len(text), 200)] }

// busy reports whether the store wants fewer requests.
func (a answer) busy() bool {
	return a.status == http.StatusServiceUnavailable || a.status == http.StatusTooManyRequests
}

func (a answer) ok() bool { return a.status/100 == 2 }

// put writes an object under a condition. errCondition: it did not hold, or somebody else wrote at the same time, for which
// S3 answers 409; nothing was written.
func (c *client) put(ctx context.Context, key, ifMatch string, body []byte) (etag string, err error) {
	header := http.Header{"If-None-Match": {"*"}, "Content-Type": {"application/json"}}
	if ifMatch != "" {
		delete(header, "If-None-Match")
		header.Set("If-Match", ifMatch)
	}
	a, err := c.do(ctx, http.MethodPut, key, nil, header, body)
	switch {
	case err != nil:
		return "", err
	case a.status == http.StatusPreconditionFailed, a.status == http.StatusConflict, a.code == "NoSuchKey":
		return "", errCondition
	case !a.ok():
		return "", c.refused(http.MethodPut, a)
	}
	if etag = a.header.Get("Etag"); etag == "" {
		return "", errors.New("the answer to a PUT has no ETag")
	}
	return etag, nil
}

var errCondition = errors.New("the object has another version")
