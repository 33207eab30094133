package cli

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/must"
)

// Locks that come and go while advise looks are counted by class, in its table and in JSON.
func TestAdvise(t *testing.T) {
	url := memory()
	c := tenant(t, url, "4711")
	must.Get(c.Mutex("order:17").Lock(t.Context()))(t)
	stop := make(chan struct{})
	turns := make(chan int)
	go func() {
		n := 0
		for ; ; n++ {
			select {
			case <-stop:
				turns <- n
				return
			default:
				_ = c.Mutex("order:18").Do(t.Context(), func(ctx context.Context) error { time.Sleep(20 * time.Millisecond); return nil })
			}
		}
	}()
	var g adviceJSON
	var out string
	// On a machine that stands still there are few looks.
	for length := time.Second; length < time.Minute && (g.Holds < 2 || g.HeldMax < 900); length *= 3 {
		code, text, err := inProcess("--url", url, "advise", "order:", "--for", length.String(), "--every", "5ms", "--json")
		if code != 0 || err != "" {
			t.Fatalf("exit code %d, %s", code, err)
		}
		var got []adviceJSON
		if err := json.Unmarshal([]byte(text), &got); err != nil || len(got) != 1 {
			t.Fatalf("%v in %s", err, text)
		}
		g, out = got[0], text
		if g.Class != "order:*" || g.FixedTTL != nil || g.Wait != nil {
			t.Errorf("got %s", out)
		}
	}
	close(stop)
	if done := <-turns; g.Holds < 2 || g.Holds > done+2 || g.HeldMax < 900 {
		t.Errorf("%d holds were made; got %s", done, out)
	}
}

// Holds that go on for long lead to no advice: a leader, the permits of a semaphore and readers have nothing to mend.
func TestAdviseOnLongHolds(t *testing.T) {
	url := memory()
	c := tenant(t, url, "4711")
	must.Get(c.Mutex("leader").Lock(t.Context()))(t)
	must.Get(c.Semaphore("gpu", 2).Acquire(t.Context()))(t)
	must.Get(c.Semaphore("gpu", 2).Acquire(t.Context()))(t)
	must.Get(c.RWMutex("catalog").RLock(t.Context()))(t)
	wantOutput(t, `
CLASS  HOLDS  HELD P99.9  MAX  FIXED TTL  WAITS  WAITED P99  WAIT
gpu  2  -  DUR  -  0  -  -
catalog  1  -  DUR  -  0  -  -
leader  1  -  DUR  -  0  -  -
`, "--url", url, "advise", "--for", "1s", "--every", "1h")
}

const someMetrics = `# TYPE distlock_hold_duration_seconds histogram
distlock_hold_duration_seconds_bucket{class="job:*",mode="exclusive",outcome="released",le="1"} 9000
distlock_hold_duration_seconds_bucket{class="job:*",mode="exclusive",outcome="released",le="5"} 10000
distlock_hold_duration_seconds_bucket{class="job:*",mode="exclusive",outcome="released",le="+Inf"} 10000
distlock_hold_duration_seconds_sum{class="job:*",mode="exclusive",outcome="released"} 8000
distlock_hold_duration_seconds_count{class="job:*",mode="exclusive",outcome="released"} 10000
`

func TestAdviseFromMetrics(t *testing.T) {
	file := filepath.Join(t.TempDir(), "metrics")
	if err := os.WriteFile(file, []byte(someMetrics), 0o600); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			http.NotFound(w, r)
			return
		}
		if auth := r.Header.Get("Authorization"); auth != "" && auth != "Bearer 0431" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		http.ServeFile(w, r, file)
	}))
	defer server.Close()
	for _, from := range []string{file, server.URL + "/metrics", strings.Replace(server.URL, "://", "://:0431@", 1) + "/metrics"} {
		code, out, err := inProcess("advise", "--metrics", from)
		if code != 0 || !strings.Contains(out, "job:*  10000  4.96s       5s   9.92s      0      -           -") {
			t.Errorf("%s: exit code %d, %s\n%s", from, code, err, out)
		}
	}
	for _, c := range []struct {
		code int
		want string
		args []string
	}{
		{64, "want no PREFIX, --for or --every with --metrics", []string{"--metrics", file, "order:"}},
		{64, "want no PREFIX, --for or --every with --metrics", []string{"--metrics", file, "--for", "1m"}},
		{64, "no such file", []string{"--metrics", file + "x"}},
		{69, "the answer is 404", []string{"--metrics", server.URL}},
		{64, "want one prefix or none", []string{"a", "b"}},
		{64, "want more than 0", []string{"--for", "0s"}},
	} {
		code, _, err := inProcess(append([]string{"advise"}, c.args...)...)
		if code != c.code || !strings.Contains(err, c.want) {
			t.Errorf("%q: exit code %d, %s; want %d, %s", c.args, code, err, c.code, c.want)
		}
	}
}
