package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
)

// openedBy has the deadline of each Open of a scheme whose server is silent.
var openedBy = make(chan time.Time, 1)

func init() {
	driver.Register("silentattempttest", func(context.Context, *url.URL) (driver.Backend, error) { return silentBackend{memlock.New()}, nil })
	driver.Register("silenttest", func(ctx context.Context, _ *url.URL) (driver.Backend, error) {
		end, _ := ctx.Deadline()
		openedBy <- end
		return nil, driver.ErrInvalid // no further try
	})
}

// A server is given no more time to be reached than the user wants to wait.
func TestTimeToOpen(t *testing.T) {
	for _, c := range []struct {
		args string
		want time.Duration
	}{
		{"run x -- true", openTimeout},
		{"run --wait 3s x -- true", 3 * time.Second},
		{"run --wait 1m x -- true", openTimeout},
		{"run --wait 1ms x -- true", answerTimeout},
		{"run --wait 0 x -- true", 2 * answerTimeout},
		{"run --no-wait x -- true", 2 * answerTimeout},
		{"cron --every 1m x -- true", 2 * answerTimeout},
		{"lock --ttl 1m --wait 2s x", 2 * time.Second},
		{"lock --ttl 1m --no-wait x", 2 * answerTimeout},
	} {
		began := time.Now()
		var says bytes.Buffer
		if code := run(append([]string{"--url", "silenttest:"}, strings.Fields(c.args)...), io.Discard, &says); code != exitUsage {
			t.Fatalf("%s: %d %s", c.args, code, &says)
		}
		ended := time.Now()
		if len(openedBy) == 0 {
			t.Fatalf("%s: nothing was opened: %s", c.args, &says)
		}
		if end := <-openedBy; end.Before(began.Add(c.want)) || end.After(ended.Add(c.want)) {
			t.Errorf("%s: opening ends after %v; want %v", c.args, end.Sub(began), c.want)
		}
	}
}

// silentBackend opens, and answers no attempt.
type silentBackend struct{ *memlock.Backend }

type attempt struct{ began, end time.Time }

var attempts = make(chan attempt, 10)

func (silentBackend) Acquire(ctx context.Context, _ driver.Request) (driver.Grant, error) {
	end, _ := ctx.Deadline()
	attempts <- attempt{time.Now(), end}
	<-ctx.Done()
	return driver.Grant{}, ctx.Err()
}

func (silentBackend) Release(ctx context.Context, _ driver.Hold) error {
	<-ctx.Done()
	return ctx.Err()
}

// A server that opens and then says nothing is given no more time for the first attempt, and none to answer the release of that.
func TestTimeOfTheFirstAttempt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args string
		want time.Duration
	}{
		{"run --wait 1500ms x y -- true", 1500 * time.Millisecond},
		{"run --no-wait x -- true", 2 * answerTimeout},
		{"lock --ttl 1m --wait 1ms x", answerTimeout},
	} {
		began := time.Now()
		var says bytes.Buffer
		code := run(append([]string{"--url", "silentattempttest:"}, strings.Fields(c.args)...), io.Discard, &says)
		if code != exitUnreachable || !strings.Contains(says.String(), "; gave up after ") {
			t.Errorf("%s: %d %s", c.args, code, &says)
		}
		if first := <-attempts; first.end.Before(began.Add(c.want)) || first.end.After(first.began.Add(c.want)) {
			t.Errorf("%s: the first attempt ends after %v; want %v", c.args, first.end.Sub(began), c.want)
		}
		for len(attempts) > 0 {
			t.Errorf("%s: another attempt: %v", c.args, <-attempts)
		}
	}
}

// Opening ends with its context wherever the server accepts connections and says nothing. The timeouts of the URLs would last for longer
// than the test.
func TestOpeningASilentServer(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "x")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "x")
	silent := func() string {
		l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
		t.Cleanup(func() { l.Close() })
		return l.Addr().String()
	}
	hosts := strings.NewReplacer("HOST", silent(), "OTHER", silent())
	for _, rawURL := range []string{
		"redis://HOST?timeout=1h", "rediss://HOST?timeout=1h", "redis+cluster://HOST?timeout=1h", "redis+sentinel://HOST/main?timeout=1h",
		"quorum+redis://HOST,OTHER/0?timeout=1h", "etcd://HOST?timeout=1h", "etcds://HOST?timeout=1h", "zk://HOST?timeout=1h", "zks://HOST?timeout=1h",
		"mysql://u:p@HOST/app?timeout=1h", "postgres://u:p@HOST/app?connect_timeout=3600&sslmode=disable", "postgres://u:p@HOST/app?connect_timeout=3600&sslmode=require",
		"http://HOST/?timeout=1h", "https://HOST/?timeout=1h", "http://HOST,HOST/?timeout=1h", "s3://bucket/?endpoint=http://HOST&region=x",
	} {
		t.Run(rawURL, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
			defer cancel()
			ended := make(chan error, 1)
			go func() { _, err := openURL(ctx, hosts.Replace(rawURL)); ended <- err }()
			select {
			case err := <-ended:
				if !errors.Is(err, distlock.ErrUnavailable) {
					t.Errorf("got %v; want that the server is unavailable", err)
				}
			case <-time.After(patience):
				t.Error("still opening")
			}
		})
	}
}
