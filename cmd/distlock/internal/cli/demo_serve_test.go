//go:build unix

package cli

import (
	"encoding/json"
	"net/http"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/httpwire"
)

// demoServer starts the demo with a temporary directory of its own, and returns its page's URL.
func demoServer(t *testing.T) (p *process, url, tmp string) {
	t.Helper()
	tmp = t.TempDir()
	p = command(t, "redis://127.0.0.1:1", "demo", "serve") // the variable, which the demo ignores
	p.Env = append(p.Env, "TMPDIR="+tmp)
	p.begin()
	p.out.await(t, "Ctrl-C")
	m := regexp.MustCompile(`(?m)^The page: (http://127\.0\.0\.1:\d+)$`).FindStringSubmatch(p.out.String())
	if m == nil {
		t.Fatalf("no URL in %q", p.out.String())
	}
	return p, m[1], tmp
}

// awaitPage reads a page until done reports true.
func awaitPage(t *testing.T, url, path string, done func(text string) bool) {
	t.Helper()
	call, text := caller(t, http.DefaultClient, url), ""
	for start := time.Now(); time.Since(start) < patience; time.Sleep(50 * time.Millisecond) {
		var status int
		if status, text, _ = call("GET", path); status == 200 && done(text) {
			return
		}
	}
	t.Fatalf("%s: %s", path, text)
}

// awaitLock reads what is known of a lock until done reports true.
func awaitLock(t *testing.T, url, name string, done func(httpwire.Info) bool) (i httpwire.Info) {
	t.Helper()
	awaitPage(t, url, "/v1/locks/"+name, func(text string) bool {
		i = httpwire.Info{}
		return json.Unmarshal([]byte(text), &i) == nil && done(i)
	})
	return i
}

// The locks of the demo are held and waited for, and a holder releases one on request. The demo leaves nothing.
func TestDemoServe(t *testing.T) {
	t.Parallel()
	p, url, tmp := demoServer(t)
	awaitPage(t, url, "/", func(text string) bool {
		for _, name := range []string{"backup:customers", "checkout", "gpu", "catalog", "report"} {
			if !strings.Contains(text, name) {
				return false
			}
		}
		return true
	})
	awaitLock(t, url, "gpu", func(i httpwire.Info) bool { return len(i.Holders) == 3 && len(i.Waiters) > 0 })
	before := awaitLock(t, url, "report", func(i httpwire.Info) bool { return len(i.Holders) == 1 && len(i.Waiters) == 1 })
	finishWith(t, url, 0, "unlock", "--ask", "report")
	awaitLock(t, url, "report", func(i httpwire.Info) bool {
		return len(i.Holders) == 1 && i.Holders[0].Fence != before.Holders[0].Fence
	})
	p.send(syscall.SIGINT)
	p.must(0)
	if files, err := os.ReadDir(tmp); err != nil || len(files) != 0 {
		t.Errorf("it left %v, %v", files, err)
	}
	if p.errors.String() != "" {
		t.Errorf("it complains: %s", p.errors.String())
	}
}

// The losses of the demo take longer than its TTL to appear.
func TestLongDemoServeLosses(t *testing.T) {
	p, url, _ := demoServer(t)
	awaitPage(t, url, "/losses", func(text string) bool { return strings.Contains(text, "mailer") })
	p.send(syscall.SIGTERM)
	p.must(0)
}

func TestDemoServeRefuses(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--url", "mem:"}, {"--local"}, {"x"}} {
		finishWith(t, lockFile(t), exitUsage, append([]string{"demo", "serve"}, args...)...)
	}
}
