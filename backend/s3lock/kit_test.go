package s3lock

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestMain(m *testing.M) {
	// AWS's chain looks nowhere else.
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": testserver.S3AccessKey, "AWS_SECRET_ACCESS_KEY": testserver.S3SecretKey, "AWS_EC2_METADATA_DISABLED": "true",
		"AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull, "AWS_REGION": "us-east-1",
	} {
		os.Setenv(name, value)
	}
	os.Exit(testserver.Run(m))
}

// fake is a store that speaks as much of S3's protocol as the backend does, in memory. It checks signatures.
type fake struct {
	mu      sync.Mutex
	objects map[string]stored
	written map[string]time.Time
	seen    map[string]int // requests, by method; that of ListObjectsV2 is LIST

	ignore  string                            // a condition that it does not honour
	region  string                            // of the bucket
	clock   func() time.Time                  // the store's
	instead func(r *http.Request) *storeError // answers in place of the store
	lose    func(r *http.Request) bool        // the answer, after the request took effect
	tear    func(key string) *stored          // what a GET finds in place of the content
	kms     bool                              // an ETag is no hash
	bare    bool                              // an ETag has no quotes in the answer to a PUT

	proxy    time.Duration // how far the clock of a proxy that answers is ahead of the store's
	timeless bool          // an answer has no times
	unmet    int           // the status of a condition that does not hold
}

type stored struct {
	etag string
	body []byte
}

// storeError is an answer of S3's.
type storeError struct {
	status  int
	code    string
	message string
	header  http.Header
}

func newFake() *fake {
	return &fake{objects: map[string]stored{}, written: map[string]time.Time{}, seen: map[string]int{}, region: "us-east-1", clock: time.Now, unmet: http.StatusPreconditionFailed}
}

// serve listens, and returns the URL of a bucket.
func (f *fake) serve(t testing.TB) string {
	t.Helper()
	srv := httptest.NewServer(f)
	t.Cleanup(srv.Close)
	return urlOf(srv.URL)
}

func urlOf(endpoint string) string { return "s3://bucket/locks?endpoint=" + url.QueryEscape(endpoint) }

// set changes the store while it serves.
func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// requests returns how many there were, by method, and forgets them.
func (f *fake) requests() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen := f.seen
	f.seen = map[string]int{}
	return seen
}

func (f *fake) object(key string) stored {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.objects[key]
}

func (f *fake) keys() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var keys []string
	for key := range f.objects {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	f.mu.Lock()
	instead, lose := f.instead, f.lose
	f.mu.Unlock()
	e := (*storeError)(nil)
	if instead != nil {
		e = instead(r)
	}
	if e == nil {
		e = f.signature(r, body)
	}
	if e == nil {
		e = f.handle(w, r, body)
	}
	if lose != nil && lose(r) {
		panic(http.ErrAbortHandler)
	}
	if e != nil {
		for name, values := range e.header {
			w.Header()[name] = values
		}
		w.Header().Set("Date", f.clock().UTC().Format(http.TimeFormat))
		w.WriteHeader(e.status)
		fmt.Fprintf(w, "<?xml version=\"1.0\"?><Error><Code>%s</Code><Message>%s</Message></Error>", e.code, e.message)
	}
}

// signature signs the request anew, and compares.
func (f *fake) signature(r *http.Request, body []byte) *storeError {
	forbidden := func(code, message string) *storeError {
		return &storeError{status: http.StatusForbidden, code: code, message: message}
	}
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if err != nil {
		return forbidden("AccessDenied", "no date")
	}
	if apart := f.clock().Sub(at); apart.Abs() > 15*time.Minute {
		return forbidden("RequestTimeTooSkewed", "The difference between the request time and the current time is too large.")
	}
	if !strings.Contains(r.Header.Get("Authorization"), "/"+f.region+"/s3/") {
		return &storeError{
			status: http.StatusBadRequest, code: "AuthorizationHeaderMalformed", message: "the region is wrong; expecting '" + f.region + "'",
			header: http.Header{"X-Amz-Bucket-Region": {f.region}},
		}
	}
	again, err := http.NewRequest(r.Method, "http://"+r.Host+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return forbidden("AccessDenied", err.Error())
	}
	for _, name := range []string{"If-Match", "If-None-Match", "Content-Type", "X-Amz-Content-Sha256"} {
		if r.Header[name] != nil {
			again.Header[name] = r.Header[name]
		}
	}
	keys := aws.Credentials{AccessKeyID: testserver.S3AccessKey, SecretAccessKey: testserver.S3SecretKey}
	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	if err := signer.SignHTTP(context.Background(), keys, again, r.Header.Get("X-Amz-Content-Sha256"), "s3", f.region, at); err != nil {
		return forbidden("AccessDenied", err.Error())
	}
	if again.Header.Get("Authorization") != r.Header.Get("Authorization") {
		return forbidden("SignatureDoesNotMatch", "The request signature we calculated does not match the signature you provided.")
	}
	return nil
}

func (f *fake) handle(w http.ResponseWriter, r *http.Request, body []byte) *storeError {
	f.mu.Lock()
	defer f.mu.Unlock()
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if bucket != "bucket" {
		return &storeError{status: http.StatusNotFound, code: "NoSuchBucket", message: "The specified bucket does not exist"}
	}
	if key == "" {
		f.seen["LIST"]++
		return f.list(w, r.URL.Query())
	}
	f.seen[r.Method]++
	old, exists := f.objects[key]
	switch r.Method {
	case http.MethodPut:
		return f.put(w, r, key, body)
	case http.MethodDelete:
		delete(f.objects, key)
		w.WriteHeader(http.StatusNoContent)
	default:
		if !exists {
			return &storeError{status: http.StatusNotFound, code: "NoSuchKey", message: "The specified key does not exist."}
		}
		w.Header().Set("ETag", old.etag)
		if !f.timeless {
			w.Header().Set("Last-Modified", f.written[key].UTC().Format(http.TimeFormat))
			w.Header().Set("Date", f.clock().Add(f.proxy).UTC().Format(http.TimeFormat))
		}
		if f.kms {
			w.Header().Set("X-Amz-Server-Side-Encryption", "aws:kms")
		}
		if f.tear != nil {
			if other := f.tear(key); other != nil {
				old = *other
			}
		}
		w.Write(old.body)
	}
	return nil
}

func (f *fake) put(w http.ResponseWriter, r *http.Request, key string, body []byte) *storeError {
	old, exists := f.objects[key]
	if r.Header.Get("If-None-Match") == "*" && exists && f.ignore != "If-None-Match" {
		return &storeError{status: f.unmet, code: "PreconditionFailed"}
	}
	if match := r.Header.Get("If-Match"); match != "" && f.ignore != "If-Match" {
		if !exists {
			return &storeError{status: http.StatusNotFound, code: "NoSuchKey"}
		}
		if old.etag != match && !(f.bare && strings.Trim(old.etag, `"`) == match) {
			return &storeError{status: f.unmet, code: "PreconditionFailed"}
		}
	}
	hash := md5.Sum(body)
	if f.kms {
		hash[0] ^= 1
	}
	etag := strconv.Quote(hex.EncodeToString(hash[:]))
	f.objects[key] = stored{etag, body}
	f.written[key] = f.clock()
	if f.bare {
		etag = strings.Trim(etag, `"`)
	}
	w.Header().Set("ETag", etag)
	w.WriteHeader(http.StatusOK)
	return nil
}

// list answers with seven keys at a time.
func (f *fake) list(w http.ResponseWriter, query url.Values) *storeError {
	var page struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		Contents              []struct{ Key string }
		IsTruncated           bool
		NextContinuationToken string
	}
	var keys []string
	for key := range f.objects {
		if strings.HasPrefix(key, query.Get("prefix")) && key > query.Get("continuation-token") {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	if len(keys) > 7 {
		keys, page.IsTruncated, page.NextContinuationToken = keys[:7], true, keys[6]
	}
	for _, key := range keys {
		page.Contents = append(page.Contents, struct{ Key string }{key})
	}
	text, err := xml.Marshal(page)
	if err != nil {
		return &storeError{status: http.StatusInternalServerError, code: err.Error()}
	}
	w.Write(text)
	return nil
}

// connect opens a bucket like another process.
func connect(t testing.TB, rawURL string) driver.Backend {
	t.Helper()
	b := must.Get(Open(context.Background(), rawURL))(t)
	t.Cleanup(func() { expect.OK(t, b.Close()) })
	return b
}

func request(name string) driver.Request {
	return driver.Request{Hold: driver.Hold{Name: name, Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: time.Hour}, Fences: 1}
}

func endpointOf(rawURL string) string {
	u, _ := url.Parse(rawURL)
	return u.Query().Get("endpoint")
}
