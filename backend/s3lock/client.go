package s3lock

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/smithy-go/encoding/httpbinding"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/record"
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
	problem
}

// problem is the body of an error.
type problem struct {
	Code, Message string
}

// do sends one request. An error means that there is no answer. A store that finds the time of the signature wrong has
// done nothing, and says what the time is.
func (c *client) do(ctx context.Context, method, key string, query url.Values, header http.Header, body []byte) (answer, error) {
	a, err := c.send(ctx, method, key, query, header, body)
	if a.Code == "RequestTimeTooSkewed" {
		if theirs, err := http.ParseTime(a.header.Get("Date")); err == nil {
			c.skew.Store(int64(time.Until(theirs)))
			return c.send(ctx, method, key, query, header, body)
		}
	}
	return a, err
}

func (c *client) send(ctx context.Context, method, key string, query url.Values, header http.Header, body []byte) (answer, error) {
	creds, err := c.creds.Retrieve(ctx)
	if err != nil {
		return answer{}, driver.Unsent(fmt.Errorf("no credentials in AWS's environment, profile, web identity, container or instance: %w", brief{err}))
	}
	req, err := http.NewRequestWithContext(ctx, method, c.url(key, query), bytes.NewReader(body))
	if err != nil {
		return answer{}, driver.Unsent(err)
	}
	maps.Copy(req.Header, header)
	sum := fmt.Sprintf("%x", sha256.Sum256(body))
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
	a := answer{status: resp.StatusCode, header: resp.Header}
	a.body, err = io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if a.status >= 300 {
		_ = xml.Unmarshal(a.body, &a.problem) // a proxy's page has neither
	}
	return a, err
}

// url returns the address of an object, or of the bucket. Its path is escaped as the signature has it.
func (c *client) url(key string, query url.Values) string {
	u := c.base
	if key != "" || u.Path == "" {
		u.Path += "/" + key
	}
	u.RawPath, u.RawQuery = httpbinding.EscapePath(u.Path, false), query.Encode()
	return u.String()
}

// actions are the rights that the calls need, by method. Without s3:ListBucket an object that does not exist is forbidden too.
var actions = map[string]string{
	http.MethodPut:    "s3:PutObject and, for conditions, s3:GetObject",
	http.MethodGet:    "s3:GetObject and s3:ListBucket",
	http.MethodDelete: "s3:DeleteObject, of which Open's probe makes use",
}

// refused returns the error for an answer that is none of those that the caller expects.
func (c *client) refused(method string, a answer) error {
	err := fmt.Errorf("%s at %s: %s", method, c.base.Redacted(), a)
	region := a.header.Get("X-Amz-Bucket-Region")
	switch {
	case a.status >= http.StatusInternalServerError, a.status == http.StatusRequestTimeout, a.busy():
		return err // it may have been done
	case region != "" && region != c.region:
		err = fmt.Errorf("%w; the bucket is in region %s, and the URL or AWS says %s: want ?region=%[2]s", err, short(region), c.region)
	case a.status < http.StatusBadRequest:
		err = fmt.Errorf("%w; the bucket is elsewhere (%s): want another region or endpoint", err, short(a.header.Get("Location")))
	case a.status == http.StatusForbidden && a.Code != "SignatureDoesNotMatch": // whose message says what to look at
		err = fmt.Errorf("%w; the credentials need %s", err, actions[method])
	case a.Code == "NoSuchBucket":
		err = fmt.Errorf("%w; make the bucket first", err)
	}
	return record.Refused(err)
}

// String returns what the answer says of a failure.
func (a answer) String() string {
	return fmt.Sprintf("%d %s: %s", a.status, cmp.Or(short(a.Code), http.StatusText(a.status)), short(a.Message))
}

// short returns the beginning of a text of the store's.
func short(text string) string { return text[:min(len(text), 200)] }

// brief is an error with a short text.
type brief struct{ error }

func (b brief) Error() string { return short(b.error.Error()) }
func (b brief) Unwrap() error { return b.error }

// busy reports whether the store wants fewer requests.
func (a answer) busy() bool {
	return a.status == http.StatusServiceUnavailable || a.status == http.StatusTooManyRequests
}

func (a answer) ok() bool { return a.status/100 == 2 }

// errAtOnce says that somebody else wrote at the same time, or that the store takes it so.
var errAtOnce = errors.New("a request at the same time")

// put writes an object under a condition. ErrConflict: it did not hold, or errAtOnce, for which S3 answers 409; nothing was
// written.
func (c *client) put(ctx context.Context, key, ifMatch string, body []byte) (etag string, err error) {
	header := http.Header{"If-None-Match": {"*"}}
	if ifMatch != "" {
		header = http.Header{"If-Match": {ifMatch}}
	}
	a, err := c.do(ctx, http.MethodPut, key, nil, header, body)
	switch {
	case err != nil:
		return "", err
	case a.status == http.StatusConflict:
		return "", fmt.Errorf("%w: %w: %s", record.ErrConflict, errAtOnce, a)
	case a.status == http.StatusPreconditionFailed, a.status == http.StatusNotModified, a.Code == "NoSuchKey":
		return "", fmt.Errorf("%w: %s", record.ErrConflict, a)
	case !a.ok():
		return "", c.refused(http.MethodPut, a)
	}
	if etag = a.header.Get("Etag"); etag == "" {
		return "", errors.New("the answer to a PUT has no ETag")
	}
	return etag, nil
}
