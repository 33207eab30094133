package s3lock

import (
	"context"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// Open leaves nothing behind.
func TestProbeIsRemoved(t *testing.T) {
	f := newFake()
	connect(t, f.serve(t))
	expect.Equal(t, strings.Join(f.keys(), " "), "", "keys")
	seen := f.requests()
	expect.Equal(t, seen[http.MethodPut], 4, "PUTs")
	expect.Equal(t, seen[http.MethodGet], 2, "GETs")
	expect.Equal(t, seen[http.MethodDelete], 1, "DELETEs")
}

// A store that ignores a condition is refused, and nothing is left there.
func TestOpenRefusesAStoreWithoutConditions(t *testing.T) {
	for _, condition := range []string{"If-Match", "If-None-Match"} {
		t.Run(condition, func(t *testing.T) {
			f := newFake()
			f.ignore = condition
			url := f.serve(t)
			locktest.OpenFails(t, Open, url, true, "http://127.0.0.1:", "/bucket ignores "+condition+",", "conditional writes")
			expect.Equal(t, strings.Join(f.keys(), " "), "", "keys")
		})
	}
}

// What the store refuses is named, with what would be right.
func TestOpenSaysWhatIsRefused(t *testing.T) {
	const action = "s3:PutObject and, for conditions, s3:GetObject"
	for name, c := range map[string]struct {
		answer storeError
		when   string // the method that is refused
		final  bool
		words  []string
	}{
		"no bucket": {
			storeError{status: 404, code: "NoSuchBucket"}, "PUT", true, []string{"404 NoSuchBucket", "make the bucket first"}},
		"a right": {
			storeError{status: 403, code: "AccessDenied", message: "Access Denied"}, "PUT", true, []string{"403 AccessDenied", "need " + action}},
		"the right to read": {
			storeError{status: 403, code: "AccessDenied", message: "Access Denied"}, "GET", true, []string{"403 AccessDenied", "need s3:GetObject and s3:ListBucket"}},
		"the right to delete": {
			storeError{status: 403, code: "AccessDenied", message: "Access Denied"}, "DELETE", true, []string{"403 AccessDenied", "need s3:DeleteObject"}},
		"moved": {
			storeError{status: 301, code: "PermanentRedirect", header: http.Header{"X-Amz-Bucket-Region": {"eu-west-1"}}}, "PUT", true,
			[]string{"the bucket is in region eu-west-1", "AWS says us-east-1", "?region=eu-west-1"}},
		"elsewhere": {
			storeError{status: 307, code: "TemporaryRedirect", header: http.Header{"Location": {"https://bucket.s3.eu-west-1.amazonaws.com/"}}}, "PUT", true,
			[]string{"307", "https://bucket.s3.eu-west-1.amazonaws.com/", "another region or endpoint"}},
		"conditions are not implemented": {
			storeError{status: 501, code: "NotImplemented", message: "A header you provided implies functionality that is not implemented"}, "PUT", false,
			[]string{"501 NotImplemented", "If-None-Match", "127.0.0.1"}},
		"busy": {storeError{status: 503, code: "SlowDown"}, "PUT", false, []string{"503 SlowDown"}},
		"a page of a proxy": {
			storeError{status: 403, message: strings.Repeat("x", 10_000)}, "PUT", true, []string{"403 Forbidden", action}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			f.instead = func(r *http.Request) *storeError {
				if r.Method == c.when {
					return &c.answer
				}
				return nil
			}
			locktest.OpenFails(t, Open, f.serve(t), c.final, c.words...)
		})
	}
}

// An Open that ends in the middle leaves nothing behind.
func TestCancelledProbeIsRemoved(t *testing.T) {
	for last := range int32(6) {
		f, n := newFake(), atomic.Int32{}
		ctx, cancel := context.WithCancel(t.Context())
		f.lose = func(r *http.Request) bool {
			if n.Add(1) == last+1 {
				cancel()
			}
			return false
		}
		if _, err := Open(ctx, f.serve(t)); err == nil && last < 5 {
			t.Errorf("opened though its context ended at request %d", last)
		}
		cancel()
		expect.Equal(t, strings.Join(f.keys(), " "), "", fmt.Sprint("keys after request ", last))
	}
}

// A store whose ETags look different in the answers to a PUT and to a GET is refused: a version would be taken for another one.
func TestOpenRefusesETagsOfTwoForms(t *testing.T) {
	f := newFake()
	f.bare = true
	locktest.OpenFails(t, Open, f.serve(t), true, "one version the ETag", "in a PUT and", "in a GET")
	expect.Equal(t, strings.Join(f.keys(), " "), "", "keys")
}

// Requests are of HTTP/1.1, also where the store has 2: a connection that hangs would hang for all.
func TestHTTP1(t *testing.T) {
	f := newFake()
	srv := httptest.NewUnstartedServer(f)
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	file := filepath.Join(t.TempDir(), "ca.pem")
	must.OK(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600))
	t.Setenv("AWS_CA_BUNDLE", file)
	f.instead = func(r *http.Request) *storeError {
		expect.Equal(t, r.Proto, "HTTP/1.1")
		return nil
	}
	connect(t, urlOf(srv.URL))
}

// The region that the bucket is in is found out from the store that checks signatures.
func TestOpenNamesTheRegion(t *testing.T) {
	f := newFake()
	f.region = "ap-south-1"
	locktest.OpenFails(t, Open, f.serve(t)+"&region=eu-west-1", true, "region ap-south-1", "AWS says eu-west-1")
	connect(t, f.serve(t)+"&region=ap-south-1")
}

func TestOpenRefusesURLs(t *testing.T) {
	for url, words := range map[string]string{
		"s3:":                           "want one such as s3://bucket/prefix",
		"s3:bucket":                     "want one such as s3://bucket/prefix",
		"s3:///locks":                   "want one such as s3://bucket/prefix",
		"s3://key:hunter2@bucket/locks": "has credentials",
		"s3://bucket:80/locks":          "a bucket of letters",
		"s3://bücket/locks":             "a bucket of letters",
		"s3://bucket/a//b":              "prefix",
		"s3://bucket/a/../b":            "prefix",
		"s3://bucket/a%00":              "prefix",
		"s3://bucket/" + strings.Repeat("x", 513): "at most 512 bytes",
		"s3://bucket/#x":                            "%23 for a #",
		"s3://bucket/?regoin=x":                     "unknown parameter \"regoin\"",
		"s3://bucket/?region=e/vil":                 "region \"e/vil\"",
		"s3://bucket/?endpoint=minio:9000":          "want one such as https://",
		"s3://bucket/?endpoint=ftp://minio":         "want one such as https://",
		"s3://bucket/?endpoint=http://u:hunter2@h/": "want one such as https://",
	} {
		t.Run(url, func(t *testing.T) { locktest.OpenFails(t, Open, url, true, words) })
	}
}

func TestOpenWithoutRegionOrCredentials(t *testing.T) {
	url := newFake().serve(t)
	t.Setenv("AWS_REGION", "")
	locktest.OpenFails(t, Open, "s3://bucket/locks", true, "?region=eu-west-1", "AWS_REGION", "?endpoint=")
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	locktest.OpenFails(t, Open, url, true, "no credentials in AWS's environment, profile")
	t.Setenv("AWS_ACCESS_KEY_ID", testserver.S3AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
	locktest.OpenFails(t, Open, url, true, "403 SignatureDoesNotMatch")
	t.Setenv("AWS_PROFILE", "none")
	locktest.OpenFails(t, Open, url, true, "AWS's configuration", "none")
}

// AWS's own variables name the endpoint too.
func TestEndpointOfTheEnvironment(t *testing.T) {
	f, other := newFake(), newFake()
	t.Setenv("AWS_ENDPOINT_URL", endpointOf(other.serve(t)))
	connect(t, "s3://bucket")
	t.Setenv("AWS_ENDPOINT_URL_S3", endpointOf(f.serve(t)))
	connect(t, "s3://bucket")
	expect.Equal(t, f.requests()[http.MethodPut], 4, "PUTs where AWS_ENDPOINT_URL_S3 says")
	expect.Equal(t, other.requests()[http.MethodPut], 4, "PUTs where AWS_ENDPOINT_URL says")
}

// A profile may name an endpoint for S3 alone, among its services, or one for all.
func TestEndpointOfTheProfile(t *testing.T) {
	f, other := newFake(), newFake()
	endpoint, file := "endpoint_url = "+endpointOf(other.serve(t))+"\n", filepath.Join(t.TempDir(), "config")
	t.Setenv("AWS_CONFIG_FILE", file)
	must.OK(t, os.WriteFile(file, []byte("[default]\n"+endpoint), 0o600))
	connect(t, "s3://bucket")
	s3 := "services = mine\n[services mine]\ns3 =\n  endpoint_url = " + endpointOf(f.serve(t)) + "\n"
	must.OK(t, os.WriteFile(file, []byte("[default]\n"+endpoint+s3), 0o600))
	connect(t, "s3://bucket")
	expect.Equal(t, f.requests()[http.MethodPut], 4, "PUTs where the service says")
	expect.Equal(t, other.requests()[http.MethodPut], 4, "PUTs where the profile says")
}

// At AWS a bucket has a host of its own, if a certificate can name it.
func TestBucketURLs(t *testing.T) {
	for _, c := range []struct{ endpoint, region, bucket, want string }{
		{"", "eu-west-1", "jobs", "https://jobs.s3.eu-west-1.amazonaws.com"},
		{"", "eu-west-1", "jobs.example.com", "https://s3.eu-west-1.amazonaws.com/jobs.example.com"},
		{"", "cn-north-1", "jobs", "https://jobs.s3.cn-north-1.amazonaws.com.cn"},
		{"http://h:9000", "", "jobs", "http://h:9000/jobs"},
		{"https://h/s3/", "x", "jobs", "https://h/s3/jobs"},
	} {
		u, err := bucketURL(c.endpoint, c.region, c.bucket)
		if expect.OK(t, err, c.want) {
			expect.Equal(t, u.String(), c.want)
		}
	}
}

// A clock that is an hour wrong signs wrong times, which the store tells.
func TestWrongClock(t *testing.T) {
	for _, wrong := range []time.Duration{-time.Hour, time.Hour, 30 * 24 * time.Hour} {
		t.Run(wrong.String(), func(t *testing.T) {
			f := newFake()
			f.clock = func() time.Time { return time.Now().Add(wrong) }
			b := connect(t, f.serve(t))
			r := request("job")
			locktest.Acquire(t, b, r)
			locktest.Release(t, b, r)
			expect.Equal(t, f.requests()[http.MethodPut], 6, "PUTs that took effect")
		})
	}
}

// The name of a store is the same from every process.
func TestNamesOfStores(t *testing.T) {
	f := newFake()
	url := f.serve(t)
	expect.Equal(t, connect(t, url).Caps().Name, "s3://bucket/locks?endpoint="+endpointOf(url))
	if caps := connect(t, url).Caps(); caps.Modes != driver.Modes(driver.Exclusive) || !caps.Observed || !caps.Floor {
		t.Errorf("%+v", caps)
	}
	_, err := distlock.Open(t.Context(), url, &distlock.Options{TTL: 25 * time.Hour})
	expect.Be(t, err, distlock.ErrInvalid, "a hold that may not be written for more than a day, after which objects may be deleted")
}
