package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestVerify(t *testing.T) {
	for _, url := range []string{"mem:", "mem:shared", lockFile(t) + "?busy_timeout=1m"} {
		t.Run(url, func(t *testing.T) {
			t.Parallel()
			code, out, err := inProcess("verify", url, "--run", "^(caps|exclusion|fence|release|cut)/", "--ttl", "1s")
			if code != 0 || err != "" {
				t.Fatalf("got %d, %q\n%s", code, err, out)
			}
			for _, want := range []string{"\nok           fence/", "\nnot claimed  cut/acquire ", " 0 broken, 0 not run\n"} {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
		})
	}
}

func TestVerifyJSON(t *testing.T) {
	code, out, err := inProcess("verify", "--json", "mem:", "--run", "^caps/")
	var report map[string]any
	if jsonErr := json.Unmarshal([]byte(out), &report); jsonErr != nil || code != 0 || err != "" {
		t.Fatalf("got %d, %q, %q, %v", code, out, err, jsonErr)
	}
	checks := report["checks"].([]any)
	if n := len(checks); n == 0 || report["ok"].(float64)+report["not_claimed"].(float64) != float64(n) || report["broken"].(float64) != 0 {
		t.Errorf("got %s", out)
	}
	for _, key := range []string{"name", "promise", "result", "took_ms"} {
		if _, ok := checks[0].(map[string]any)[key]; !ok {
			t.Errorf("no %q in %s", key, out)
		}
	}
}

func TestVerifyList(t *testing.T) {
	code, out, _ := inProcess("verify", "--list")
	if code != 0 || strings.Count(out, "\n") != len(drivertest.Checks()) {
		t.Errorf("got %d, %s", code, out)
	}
}

func TestVerifyTimeUp(t *testing.T) {
	code, out, _ := inProcess("verify", "mem:", "--timeout", "1ns", "--run", "^caps/")
	if code != 1 || !strings.Contains(out, "not run      caps/") || !strings.Contains(out, "--timeout") {
		t.Errorf("got %d, %s", code, out)
	}
}

func TestVerifyUnreachable(t *testing.T) {
	if code, _, err := inProcess("verify", "redis://127.0.0.1:1"); code != exitUnreachable || strings.Count(err, "\n") != 1 {
		t.Errorf("got %d, %q", code, err)
	}
}

// Names that a store can't have are no broken promise, if all calls refuse them.
func TestLongVerifyCluster(t *testing.T) {
	url := "redis+cluster://" + testserver.SharedRedisCluster(t).Addrs()[0]
	code, out, err := inProcess("verify", url, "--run", "^names/(start|punctuation|refused)$")
	if code != 0 || !strings.Contains(out, "3 kept, 0 not claimed") {
		t.Errorf("exit code %d\n%s%s", code, out, err)
	}
}
