package driver_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

func parse(t *testing.T, raw string) *driver.Params {
	t.Helper()
	u := must.Get(url.Parse(raw))(t)
	return driver.NewParams(u)
}

func TestParams(t *testing.T) {
	p := parse(t, "x:?a=v&c=two&d=1.5s&b=true&i=7")
	if p.String("a", "") != "v" || p.Choice("c", "one", "two") != "two" || p.Duration("d", 0) != 1500*time.Millisecond ||
		!p.Bool("b", false) || p.Int("i", 0, 1, 9) != 7 || p.Err() != nil {
		t.Errorf("%v", p.Err())
	}
	p = parse(t, "x:")
	if p.String("a", "v") != "v" || p.Choice("c", "one", "two") != "one" || p.Duration("d", time.Second) != time.Second ||
		!p.Bool("b", true) || p.Int("i", 3, 1, 9) != 3 || p.Err() != nil {
		t.Errorf("defaults: %v", p.Err())
	}
}

func TestParamsSayWhatIsWrong(t *testing.T) {
	p := parse(t, "x:?a=1&a=2&c=three&d=soon&n=-1s&b=maybe&i=10&e=&colour=red&%zz")
	p.String("a", "")
	p.Choice("c", "one", "two")
	p.Duration("d", 0)
	p.Duration("n", 0)
	p.Duration("e", 0)
	p.Bool("b", false)
	p.Int("i", 0, 1, 9)
	err := p.Err()
	must.Be(t, err, driver.ErrInvalid)
	for _, says := range []string{"given 2 times", "one of one, two", "d=soon", "n=-1s", "b=maybe", "from 1 to 9", "e=", `"colour"; known: a, c, d, n, e, b, i`, "malformed query"} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("%v\nlacks %q", err, says)
		}
	}
}

func TestRedact(t *testing.T) {
	for raw, want := range map[string]string{
		"redis://u:secret@h:1/0":                      "redis://u:xxxxx@h:1/0",
		"redis://h:1/0?password=s":                    "redis://h:1/0?password=xxxxx",
		"redis://h:1/0?password_file=%2Fp":            "redis://h:1/0?password_file=%2Fp",
		"redis://h:1/0?layout=string":                 "redis://h:1/0?layout=string",
		"redis://u:se%cret@h:1":                       "redis:…",
		"http://secret@h:1":                           "http://xxxxx@h:1",
		"rediss+cluster://secret@h:1":                 "rediss+cluster://xxxxx@h:1",
		"quorum+redis://secret@a,b,c/0":               "quorum+redis://xxxxx@a,b,c/0",
		"postgres://u@h:1/d":                          "postgres://u@h:1/d",
		"zk://h?auth=digest:u:secret":                 "zk://h?auth=xxxxx",
		"host=h user=u password=secret":               "…",
		"host=h password=secret:x":                    "…",
		"u:secret@h":                                  "u:…",
		"redis://:12/secret@h:1/0":                    "redis:…",
		"redis://:12?secret@h:1/0":                    "redis:…",
		"sqlite:/tmp/locks.db":                        "sqlite:/tmp/locks.db",
		"redis://u:secret@a,b:1/0":                    "redis://u:xxxxx@a,b:1/0",
		"quorum:?member=redis%3A%2F%2Fu%3Asecret%40h": "quorum:?member=redis%3A%2F%2Fu%3Axxxxx%40h",
	} {
		if got := driver.Redact(raw); got != want {
			t.Errorf("Redact(%q) = %q, want %q", raw, got, want)
		}
	}
}

var registered atomic.Int64

func TestRegister(t *testing.T) {
	opened := ""
	scheme := fmt.Sprintf("test-%d", registered.Add(1)) // the registry outlives a repeated test
	driver.Register(scheme, func(_ context.Context, u *url.URL) (driver.Backend, error) {
		opened = u.Host
		return nil, nil
	})
	if _, err := driver.Open(t.Context(), scheme+"://here"); err != nil || opened != "here" {
		t.Errorf("opened %q, %v", opened, err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a scheme was registered twice")
		}
	}()
	driver.Register(scheme, nil)
}

// gone is a backend of which an opener may return nil.
type gone struct{ driver.Backend }

// An opener that returns a nil pointer with its error has not opened a backend that isn't
// nil and can't be closed.
func TestOpenAnswersNoBackendWithAnError(t *testing.T) {
	scheme := fmt.Sprintf("test-%d", registered.Add(1))
	refusal := errors.New("no")
	driver.Register(scheme, func(context.Context, *url.URL) (driver.Backend, error) { return (*gone)(nil), refusal })
	if b, err := driver.Open(t.Context(), scheme+"://here"); b != nil || err != refusal {
		t.Errorf("%#v, %v", b, err)
	}
}

func TestParseURLTakesSeveralHosts(t *testing.T) {
	u := must.Get(driver.ParseURL("redis+sentinel://user:p%40ss,word@a:26379,b,[::1]:1/mymaster/0?x=1"))(t)
	password, _ := u.User.Password()
	if u.Host != "a:26379,b,[::1]:1" || u.Path != "/mymaster/0" || u.RawQuery != "x=1" || password != "p@ss,word" {
		t.Errorf("%#v", u)
	}
	expect.Equal(t, strings.Join(driver.Hosts(u, "26379"), " "), "a:26379 b:26379 [::1]:1", "hosts")
	if u, _ = driver.ParseURL("redis:///0"); strings.Join(driver.Hosts(u, "6379"), " ") != "localhost:6379" {
		t.Errorf("hosts of %v: %v", u, driver.Hosts(u, "6379"))
	}
}

func TestParseURLQuotesNothing(t *testing.T) {
	for _, raw := range []string{"redis://u:hunter2,b:x/1@h", "redis://a,,b", "redis://a,b:hunter2", "redis://u:p@a,:1/", "redis://h:hunter2", "redis://a,b/%zz", "etcd://u:hunter2:#x@h", "etcd://u:hunter2:/x@h,b", "etcd://hunter2:1#x@h"} {
		_, err := driver.ParseURL(raw)
		if !errors.Is(err, driver.ErrInvalid) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", raw, err)
		}
	}
}
