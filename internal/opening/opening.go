// Package opening makes backends of URLs for people: it says soon if another kind of server answers at the address, and
// says each thing once.
//
//	opening.go   the time that it takes, and the error
//	speaks.go    what a server speaks
package opening

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// firstLook returns how long a server may take before it is asked what it speaks. Many clients wait for a greeting that another
// kind of server never sends.
func firstLook(ctx context.Context) time.Duration {
	end, ok := ctx.Deadline()
	if left := time.Until(end) / 2; ok && left < 2*time.Second {
		return left
	}
	return 2 * time.Second
}

// kind is a kind of server.
type kind struct {
	name   string // of what it speaks, for people
	speaks string // its protocol
	port   string // where it listens by default
}

// kinds are the kinds of servers by the schemes of their URLs. One that wants TLS answers nothing plain, but over HTTP: there
// nothing is looked for.
var kinds = map[string]kind{
	"redis": {"Redis", "Redis", "6379"}, "redis+cluster": {"Redis", "Redis", "6379"}, "redis+sentinel": {"Redis", "Redis", "26379"},
	"etcd": {"etcd's protocol", "HTTP", "2379"}, "http": {"HTTP", "HTTP", "80"}, "zk": {"ZooKeeper", "ZooKeeper", "2181"},
	"rediss": {"TLS", "", "6379"}, "rediss+cluster": {"TLS", "", "6379"}, "rediss+sentinel": {"TLS", "", "26379"}, "zks": {"TLS", "", "2181"},
	"etcds": {port: "2379"}, "https": {port: "443"},
	"mysql": {"MySQL", "MySQL", "3306"}, "postgres": {"PostgreSQL", "PostgreSQL", "5432"}, "postgresql": {"PostgreSQL", "PostgreSQL", "5432"},
}

// Open makes a backend as driver.Open does. If another kind of server answers at the address, the error says so within a few
// seconds, also if ctx lives on.
func Open(ctx context.Context, rawURL string) (driver.Backend, error) {
	u, err := driver.ParseURL(rawURL)
	if err != nil {
		b, err := driver.Open(ctx, rawURL)
		return b, plain(err, nil)
	}
	k, addrs := addresses(u)
	if len(addrs) == 0 || k.name == "" {
		b, err := driver.Open(ctx, rawURL)
		return b, plain(err, addrs)
	}
	open, cancel := context.WithCancel(ctx)
	looked, found := make(chan struct{}), ""
	soon := time.AfterFunc(firstLook(ctx), func() {
		defer close(looked)
		if found = look(open, k, addrs); found != "" {
			cancel()
		}
	})
	b, err := driver.Open(open, rawURL)
	stopped := soon.Stop()
	if err == nil || driver.Final(err) {
		cancel()
		if !stopped {
			<-looked
		}
		return b, plain(err, addrs)
	}
	if !stopped {
		<-looked
	} else if ctx.Err() == nil {
		found = look(ctx, k, addrs)
	}
	cancel()
	if found == "" {
		return nil, plain(err, addrs)
	}
	return nil, errors.New(found)
}

// addresses returns the kind of server that a URL names, and where. A URL without an address, of files or of several
// backends, has none.
func addresses(u *url.URL) (kind, []string) {
	k, ok := kinds[strings.TrimPrefix(u.Scheme, "quorum+")]
	if !ok || u.Host == "" && u.RawQuery != "" {
		return k, nil
	}
	return k, driver.Hosts(u, k.port)
}

// look describes the first server that is of another kind; "" if none is known to be.
func look(ctx context.Context, want kind, addrs []string) string {
	for _, addr := range addrs[:min(len(addrs), 3)] {
		speaks := Speaks(ctx, addr)
		if speaks == "" || speaks == want.speaks {
			continue
		}
		return fmt.Sprintf("the server at %s speaks %s, not %s; want another port, or a URL such as %s%s", addr, speaks, want.name, urls[speaks], addr)
	}
	return ""
}

// urls are how the URLs of servers begin, by their protocol. etcd and distlock serve speak HTTP.
var urls = map[string]string{
	"Redis": "redis://", "HTTP": "etcd:// or http://", "ZooKeeper": "zk://", "MySQL": "mysql://", "PostgreSQL": "postgres://",
}

// prefix is what backends put before their errors of Open, which whoever opens has in the message already.
var prefix = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^\w+lock: open( \w[\w+]*://\S+)?: `) })

// plain returns an error on one line, which says nothing twice, and what may help if nobody answers.
func plain(err error, addrs []string) error {
	if err == nil {
		return nil
	}
	text := prefix().ReplaceAllString(err.Error(), "")
	var parts []string
	for _, part := range strings.FieldsFunc(strings.ReplaceAll(text, "; ", "\n"), func(r rune) bool { return r == '\n' }) {
		if part = strings.TrimSpace(part); part != "" && !slices.Contains(parts, part) {
			parts = append(parts, part)
		}
	}
	text = strings.ReplaceAll(strings.Join(parts, "; "), ":; ", ": ")
	if help := helpFor(err, text, addrs); help != "" && !driver.Final(err) {
		text = help
	}
	return &trimmed{err, text}
}

// helpFor says what is wrong at the only address of a URL; "" if the error has to say it.
func helpFor(err error, text string, addrs []string) string {
	_, socket, isSocket := strings.Cut(text, "dial unix ")
	switch {
	case isSocket:
		path, why, _ := strings.Cut(socket, ": connect: ")
		return fmt.Sprintf("no server listens at the socket %s (%s); is it started, and is this its socket?", path, why)
	case len(addrs) != 1:
		return ""
	case strings.Contains(text, "connection refused"):
		return fmt.Sprintf("nothing listens at %s (connection refused); is the server started, and is this its port?", addrs[0])
	case strings.Contains(text, "no such host"):
		host, _, _ := net.SplitHostPort(addrs[0])
		return fmt.Sprintf("there is no such host as %q; is the name right, and known to this machine's DNS?", host)
	case errors.Is(err, context.DeadlineExceeded) && !strings.Contains(text, ";"):
		return fmt.Sprintf("no answer from %s in time; is the address right, and does a firewall let it through?", addrs[0])
	}
	return ""
}

// trimmed is an error with another text.
type trimmed struct {
	error
	text string
}

func (t *trimmed) Error() string { return t.text }

func (t *trimmed) Unwrap() error { return t.error }
