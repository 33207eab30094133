package s3lock

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/record"
)

func init() {
	driver.Register("s3", openURL)
}

const (
	// minTTL is the shortest TTL: a renewal takes a tenth of a second at times.
	minTTL = time.Second

	// maxTTL is the longest: a lifecycle rule may delete what nobody has written for a day, and a hold is written in that time.
	maxTTL = 24 * time.Hour

	// poll is the shortest pause of one waiter. The core makes it up to sixteen times as long.
	poll = 250 * time.Millisecond

	// removeTime bounds the removal of the probe: the end of Open's context does not.
	removeTime = 2 * time.Second
)

// Open opens a bucket:
//
//	s3://bucket/prefix?region=eu-west-1
//	s3://bucket/prefix?endpoint=https://minio.example.com:9000
//	s3://bucket/prefix?clock=off
//
// clock=off: no hold is ended by the store's clock (see the package comment). The region of the environment or the profile is used without one in the URL. endpoint is for stores other than AWS's;
// AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL and the profile's endpoint_url name one too. The error is ErrInvalid if the store does
// not honour conditional writes, if there is no such bucket in the region, and if the credentials lack a right.
func Open(ctx context.Context, rawURL string) (driver.Backend, error) {
	u, err := driver.ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	return openURL(ctx, u)
}

func openURL(ctx context.Context, u *url.URL) (driver.Backend, error) {
	s, err := openStore(ctx, u)
	if err != nil {
		return nil, err
	}
	return s.backend(), nil
}

func (s *store) backend() *record.Backend {
	caps := driver.Caps{Name: s.name, Floor: true, MinTTL: minTTL, MaxTTL: maxTTL, Poll: poll}
	if s.clock {
		caps.Late = record.Late
	}
	return record.New(s, caps)
}

func openStore(ctx context.Context, u *url.URL) (*store, error) {
	p := driver.NewParams(u)
	region, endpoint, clock := p.String("region", ""), p.String("endpoint", ""), p.Choice("clock", "on", "off")
	prefix, err := target(u)
	if err := errors.Join(err, p.Err()); err != nil {
		return nil, err
	}
	cfg, err := config.LoadDefaultConfig(ctx, config.WithRegion(region))
	if err != nil {
		return nil, fmt.Errorf("%w: AWS's configuration: %w", driver.ErrInvalid, err)
	}
	endpoint = cmp.Or(endpoint, endpointOfS3(ctx, cfg), aws.ToString(cfg.BaseEndpoint))
	base, err := bucketURL(endpoint, cfg.Region, u.Host)
	if err != nil {
		return nil, err
	}
	name := "s3://" + strings.TrimSuffix(u.Host+"/"+prefix, "/")
	if endpoint != "" {
		name += "?endpoint=" + endpoint
	}
	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	c := &client{base: *base, region: cmp.Or(cfg.Region, "us-east-1"), creds: cfg.Credentials, http: httpClient(cfg), signer: signer}
	s := &store{client: c, Pace: record.Pace{Gap: record.MinGap}, name: name, prefix: prefix, clock: clock == "on"}
	if err := s.probe(ctx); err != nil {
		s.http.CloseIdleConnections()
		return nil, err
	}
	return s, nil
}

// endpointOfS3 returns what the environment, or else the profile, says of S3 alone.
func endpointOfS3(ctx context.Context, cfg aws.Config) string {
	for _, source := range cfg.ConfigSources {
		s, ok := source.(interface {
			GetServiceBaseEndpoint(ctx context.Context, service string) (endpoint string, found bool, err error)
		})
		if !ok {
			continue
		}
		if endpoint, found, err := s.GetServiceBaseEndpoint(ctx, "S3"); err == nil && found {
			return endpoint
		}
	}
	return ""
}

// target checks the bucket and the path of a URL, and returns the prefix of keys.
func target(u *url.URL) (prefix string, err error) {
	switch {
	case u.User != nil:
		return "", fmt.Errorf("%w: URL has credentials, which come from AWS's environment, profile or role", driver.ErrInvalid)
	case u.Scheme != "s3" || u.Host == "" || u.Fragment != "" || strings.ContainsFunc(u.Host, func(c rune) bool { return c != '.' && !isWord(c) }):
		return "", fmt.Errorf("%w: URL: want one such as s3://bucket/prefix?region=eu-west-1, with a bucket of letters, digits, dots and hyphens, and %%23 for a #", driver.ErrInvalid)
	}
	prefix = strings.Trim(u.Path, "/")
	if prefix == "" {
		return "", nil
	}
	odd := strings.ContainsFunc(prefix, func(c rune) bool { return c < ' ' || c == utf8.RuneError })
	if odd || path.Clean("/"+prefix) != "/"+prefix || len(prefix) > maxPrefix {
		return "", fmt.Errorf("%w: URL: the prefix is UTF-8 of at most %d bytes, without control characters, and with no segment that is empty or one of . and .. (as in a path)", driver.ErrInvalid, maxPrefix)
	}
	return prefix + "/", nil
}

func isWord(c rune) bool { return c < utf8.RuneSelf && isPlain(byte(c)) }

// bucketURL returns the address of the bucket: a path of the endpoint, or at AWS a host of its own unless it has a dot, which no
// certificate has.
func bucketURL(endpoint, region, bucket string) (*url.URL, error) {
	if endpoint == "" {
		if region == "" || strings.ContainsFunc(region, func(c rune) bool { return !isWord(c) }) {
			return nil, fmt.Errorf("%w: region %q: want one such as ?region=eu-west-1, or in AWS_REGION or the profile; or ?endpoint= of another store", driver.ErrInvalid, region)
		}
		host := "s3." + region + ".amazonaws.com"
		if strings.HasPrefix(region, "cn-") {
			host += ".cn"
		}
		if !strings.Contains(bucket, ".") {
			return &url.URL{Scheme: "https", Host: bucket + "." + host}, nil
		}
		endpoint = "https://" + host
	}
	e, err := driver.ParseURL(endpoint)
	if err != nil || e.Scheme != "http" && e.Scheme != "https" || e.Host == "" || e.User != nil || e.RawQuery != "" || e.Fragment != "" {
		return nil, fmt.Errorf("%w: endpoint: want one such as https://minio.example.com:9000", driver.ErrInvalid)
	}
	return &url.URL{Scheme: e.Scheme, Host: e.Host, Path: strings.TrimSuffix(e.Path, "/") + "/" + bucket}, nil
}

// httpClient returns a client with the certificates of AWS_CA_BUNDLE. It follows no redirect: a signature is for one host. It speaks
// HTTP/1.1: a request without an answer ends its connection, and others go on.
func httpClient(cfg aws.Config) *http.Client {
	builder, ok := cfg.HTTPClient.(*awshttp.BuildableClient)
	if !ok {
		builder = awshttp.NewBuildableClient()
	}
	transport := builder.GetTransport()
	transport.MaxIdleConnsPerHost = 64
	transport.ForceAttemptHTTP2, transport.TLSNextProto = false, map[string]func(string, *tls.Conn) http.RoundTripper{}
	transport.TLSClientConfig.NextProtos = []string{"http/1.1"}
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// probe shows that the store honours both conditions, and that all rights are there, by an object that nobody else has.
func (s *store) probe(ctx context.Context) (err error) {
	key := s.prefix + probeMark + driver.NewOwner()
	write := func(ifMatch, content string) (etag string, err error) {
		for range rereads {
			if etag, err = s.put(ctx, key, ifMatch, []byte(content)); !errors.Is(err, errAtOnce) {
				break
			}
		}
		return etag, err
	}
	if _, err := s.get(ctx, key); err != nil {
		return s.unusable("an object that is not there", err)
	}
	first, err := write("", probed+"1}")
	if !errors.Is(err, driver.ErrUnsent) && !errors.Is(err, record.ErrRefused) {
		defer func() { err = errors.Join(err, s.remove(ctx, key)) }()
	}
	if err != nil {
		return s.unusable("If-None-Match: * for a new object", err)
	}
	s.hashes = first == hashOf([]byte(probed+"1}"))
	began := time.Now()
	second, err := write(first, probed+"2}")
	if err != nil {
		return s.unusable("If-Match with the object's ETag", err)
	}
	f, err := s.get(ctx, key)
	if err != nil {
		return s.unusable("GET", err)
	}
	if f.Version != second {
		return fmt.Errorf("%w: the store at %s gives one version the ETag %s in a PUT and %s in a GET", driver.ErrInvalid, s.base.Redacted(), second, f.Version)
	}
	s.clock = s.clock && record.OneClock(f.written, f.read, time.Since(began))
	for _, c := range []struct{ condition, ifMatch string }{{"If-Match", first}, {"If-None-Match", ""}} {
		switch _, err := write(c.ifMatch, probed+"3}"); {
		case err == nil:
			return fmt.Errorf("%w: the store at %s ignores %s, so two could hold one lock; want one with conditional writes", driver.ErrInvalid, s.base.Redacted(), c.condition)
		case !errors.Is(err, record.ErrConflict):
			return s.unusable(c.condition, err)
		}
	}
	return nil
}

// probed begins the content of a probe.
const probed = `{"distlock":1,"counter":`

// remove deletes the probe, also if ctx has ended.
func (s *store) remove(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
	defer cancel()
	a, err := s.do(ctx, http.MethodDelete, key, nil, nil, nil)
	if err == nil && !a.ok() {
		err = s.refused(http.MethodDelete, a)
	}
	if err != nil {
		err = s.unusable("DELETE", err)
	}
	return err
}

// unusable returns the error of Open for a step of the probe. What the store refused now is final for an Opener; what had no answer
// is not.
func (s *store) unusable(step string, err error) error {
	if errors.Is(err, record.ErrRefused) || errors.Is(err, driver.ErrUnsent) && !errors.As(err, new(net.Error)) || errors.Is(err, record.ErrConflict) {
		return fmt.Errorf("%w: s3lock: probe of %s: %s: %w", driver.ErrInvalid, s.base.Redacted(), step, err)
	}
	return fmt.Errorf("s3lock: probe of %s: %s: %w", s.base.Redacted(), step, err)
}
