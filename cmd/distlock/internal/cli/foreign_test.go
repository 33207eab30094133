package cli

import (
	"strings"
	"testing"

	"github.com/distlock/distlock/internal/testkit/testserver"
)

// Unlock --force leaves a value alone that distlock can't tell to be a lock, and names what
// would break it.
func TestUnlockOfForeignValues(t *testing.T) {
	srv := testserver.Redis(t)
	url := srv.URL() + "?prefix=app:"
	set := func(args ...string) {
		t.Helper()
		if _, err := srv.Do(append([]string{"SET", "app:session:abc"}, args...)...); err != nil {
			t.Fatal(err)
		}
	}
	value := func() any {
		t.Helper()
		v, err := srv.Do("GET", "app:session:abc")
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	set("x", "EX", "100")
	code, out, err := inProcess("--url", url, "unlock", "--force", "session:abc")
	if code != exitUsage || out != "" || !strings.Contains(err, `"session:abc"`) || !strings.Contains(err, "--foreign") || value() != "x" {
		t.Errorf("a string with a TTL: exit code %d, %q, %q; the value is %v", code, out, err, value())
	}
	code, out, err = inProcess("--url", url, "unlock", "--force", "--foreign", "session:abc")
	if code != 0 || !strings.HasPrefix(out, "broke session:abc: exclusive hold") || err != "" || value() != nil {
		t.Errorf("with --foreign: exit code %d, %q, %q; the value is %v", code, out, err, value())
	}
	set("x")
	for _, flags := range [][]string{{"--force"}, {"--force", "--foreign"}} {
		code, out, err = inProcess(append([]string{"--url", url, "unlock", "session:abc"}, flags...)...)
		if code != exitUsage || out != "" || !strings.Contains(err, `"app:session:abc"`) || !strings.Contains(err, "?prefix=") || value() != "x" {
			t.Errorf("a string without a TTL, %q: exit code %d, %q, %q; the value is %v", flags, code, out, err, value())
		}
	}
	code, _, err = inProcess("--url", url, "unlock", "--ask", "--foreign", "session:abc")
	if code != exitUsage || !strings.Contains(err, "--foreign goes with --force") {
		t.Errorf("--ask --foreign: exit code %d, %q", code, err)
	}
}

// Show says that a value is foreign, and ls does not list it.
func TestShowOfForeignValues(t *testing.T) {
	srv := testserver.Redis(t)
	if _, err := srv.Do("SET", "token", "\x1b[H", "EX", "100"); err != nil {
		t.Fatal(err)
	}
	wantOutput(t, `
name  token
mode  exclusive
waiters  -

holder 1
  mode  exclusive
  left  DUR unless renewed
  host  -
  pid  -
  program  -
  foreign  another library's lock, or other data
  owner  \x1b[H
`, "--url", srv.URL(), "show", "token")
	code, out, _ := inProcess("--url", srv.URL(), "show", "--json", "token")
	if code != 0 || !strings.Contains(out, `"foreign": true`) {
		t.Errorf("exit code %d, %s", code, out)
	}
	wantOutput(t, "[]\n", "--url", srv.URL(), "ls", "--json")
}
