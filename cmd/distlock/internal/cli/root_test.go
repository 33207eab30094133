package cli

import (
	"strings"
	"testing"
)

func TestUsageErrors(t *testing.T) {
	t.Setenv(urlVariable, "mem:usage")
	for _, test := range []struct{ args, says string }{
		{"bogus", `unknown command "bogus"`},
		{"run --url= a -- true", "--url is empty"},
		{"--bogus", "unknown flag: --bogus"},
		{"help bogus", `unknown command "bogus"`},
		{"completion tcsh", "want one of bash"},
		{"version now", "want none"},
		{"run", "want: distlock run NAME -- COMMAND"},
		{"run a true", "no -- before the command"},
		{"run -- true", "no name of a lock"},
		{"run a --", "no command after --"},
		{"run --bogus a -- true", "unknown flag: --bogus"},
		{"run a ls -l", "flags of the command go after --"},
		{"run --wait soon a -- true", "want a duration such as"},
		{"run --wait -1s a -- true", "want no negative duration"},
		{"run --ttl -1s a -- true", "want no negative duration"},
		{"run --ttl 0 a -- true", "want more than 0"},
		{"run --grace -1s a -- true", "want no negative duration"},
		{"run --min-hold -1s a -- true", "want no negative duration"},
		{"run --wait 1s --no-wait a -- true", "--wait and --no-wait exclude each other"},
		{"run --shared --permits 2 a -- true", "--shared and --permits exclude each other"},
		{"run --permits 2 a b -- true", "--permits is for one lock"},
		{"run --permits 0 a -- true", "want a whole number from 1"},
		{"run --permits some a -- true", "want a whole number from 1"},
		{"run --busy-code 256 a -- true", "from 0 to 255"},
		{"run --meta nonsense a -- true", "want key=value"},
		{"run --meta =v a -- true", "want key=value"},
		{"run --on-loss panic a -- true", "want term, kill or ignore"},
		{"run --on-loss kill --grace 1s a -- true", "--grace goes with --on-loss term"},
		{"run --ttl 4s --grace 3s a -- true", "want at most half of it, 2s"},
		{"run a b a -- true", "named twice"},
		{"run a -c true -- false", "no -- COMMAND goes with it"},
		{"run a -c", "flag needs an argument"},
		{"run -c true", "no name of a lock"},
		{"run a --command=", "-c takes a line for the shell"},
		{"cron", "want: distlock cron NAME -- COMMAND"},
		{"cron a b -- true", "cron: got 2 names"},
		{"cron --every 0 a -- true", "want more than 0"},
		{"cron --every often a -- true", "want a duration such as"},
		{"cron --min-hold 1m a -- true", "unknown flag: --min-hold"},
		{"cron a -- true", "cron: mem: stores locks in the memory of this process"},
		{"cron --url sqlite:locks.db a -- true", "is another file in each working directory; want its full path, as here sqlite:///"},
		{"elect", "want: distlock elect NAME -- COMMAND"},
		{"elect a b -- true", "elect: got 2 names"},
		{"elect --wait 1s a -- true", "unknown flag: --wait (flags of the command go after --)"},
		{"elect --quiet --verbose a -- true", "elect: --quiet and --verbose exclude each other"},
		{"elect a -- true", "elect: mem: stores locks in the memory of this process"},
		{"leader", "want the name of one election"},
		{"leader --json a b", "want the name of one election"},
		{"ls a b", "want one prefix or none"},
		{"show", "want the name of one lock"},
		{"show a b", "want the name of one lock"},
		{"unlock", "want the name of one lock"},
		{"unlock a", "distlock unlock --force NAME"},
		{"unlock a", "distlock unlock --ask NAME"},
		{"unlock --ask --force a", "--ask and --force exclude each other"},
		{"run --on-ask kill a -- true", "want term or ignore"},
		{"verify", "want one URL"},
		{"verify --run ( mem:", "--run"},
		{"verify --run ( --url mem:", "--run"},
		{"verify --run nothing-like-it mem:", "distlock verify --list"},
		{"verify --parallel 0 mem:", "want a whole number from 1"},
		{"schema", "want mysql or postgres"},
		{"schema mysql postgres", "want mysql or postgres"},
		{"schema oracle", `unknown database "oracle"`},
		{"schema mysql --strategy best", "want one of row, forupdate, session"},
		{"schema postgres --strategy session", "want one of row, advisory"},
		{"schema mysql --table a-b", "letters, digits and underscores"},
		{"schema postgres --table a.b.c", "letters, digits and underscores"},
		{"schema mysql --bogus", "unknown flag: --bogus"},
		{"demo", ""},
		{"demo undersell", "want oversell or serve"},
		{"demo oversell", "give another --url"},
		{"demo buyer", "want: distlock demo oversell"},
		{"--url bogus:x ls", `unknown URL scheme "bogus"`},
		{"--url localhost ls", "URL has no scheme"},
		{"--url sqlite:/tmp/x.db?colour=red ls", `unknown parameter "colour"`},
	} {
		t.Run(test.args, func(t *testing.T) {
			code, out, err := inProcess(strings.Fields(test.args)...)
			if test.says == "" {
				if code != 0 || !strings.Contains(out, "Usage:") || err != "" {
					t.Fatalf("got %d, %q, %q; want the help", code, out, err)
				}
				return
			}
			if code != exitUsage || out != "" {
				t.Errorf("got exit code %d and output %q; want %d and none", code, out, exitUsage)
			}
			if !strings.HasPrefix(err, "distlock: ") || !strings.Contains(err, test.says) || strings.Count(err, "\n") != 1 {
				t.Errorf("got %q; want one line with %q", err, test.says)
			}
		})
	}
}

// withPasswords are URLs that hold a password, some of them malformed.
var withPasswords = []string{
	"redis://user:s3cr3t-word@127.0.0.1:1",
	"redis://:s3cr3t-word@127.0.0.1:1/0",
	"redis://user:s3cr3t-word@127.0.0.1:port",
	"redis://user:s3cr3t-word/x@127.0.0.1:1",
	"redis://user:s3cr3t-word#x@127.0.0.1:1",
	"redis://user:s3cr3t-word%zz@127.0.0.1:1",
	"redis://user:s3cr3t%2Dword@127.0.0.1:1/?bogus=1",
	"redis://127.0.0.1:1/?password=s3cr3t-word",
	"quorum+redis://s3cr3t-word@127.0.0.1:1,127.0.0.1:2,127.0.0.1:3/0",
	"bogus://user:s3cr3t-word@host",
	"//user:s3cr3t-word@host",
	"sqlite://user:s3cr3t-word@host/x.db",
	"mem://user:s3cr3t-word@host",
	"mysql://user:s3cr3t-word@127.0.0.1:1/app",
	"mysql://user:s3cr3t-word@127.0.0.1:1",
	"mysql://user:s3cr3t-word/x@127.0.0.1:1/app",
	"mysql://user:s3cr3t-word?x@127.0.0.1:1/app",
	"postgres://user:s3cr3t-word@127.0.0.1:1/app",
	"postgres://user:s3cr3t-word@127.0.0.1:1/app?bogus=1",
}

func TestNoPassword(t *testing.T) {
	for _, url := range withPasswords {
		for _, args := range [][]string{
			{"--url", url, "ls"}, {"--url=" + url, "show", "x"}, {"--url", url, "run", "x", "--", "true"}, {"--url", url, "elect", "x", "--", "true"}, {"--url", url, "leader", "--watch", "x"}, {"verify", url},
			{"verify", "--json", url}, {url}, {"ls", url, url}, {"--" + url},
		} {
			tellsNoPassword(t, args...)
		}
	}
	demosTellNoPassword(t, withPasswords[:4])
}

func TestLongNoPassword(t *testing.T) { demosTellNoPassword(t, withPasswords) }

// The buyers of a demo are processes of their own, which get the URL.
func demosTellNoPassword(t *testing.T, urls []string) {
	for _, url := range urls {
		tellsNoPassword(t, "--url", url, "demo", "oversell")
	}
}

func tellsNoPassword(t *testing.T, args ...string) {
	t.Helper()
	code, out, err := inProcess(args...)
	if text := out + err; strings.Contains(text, "s3cr3t") {
		t.Errorf("%q tells the password: %s", args, text)
	}
	if code != exitUsage && code != exitUnreachable {
		t.Errorf("%q: exit code %d; want %d or %d", args, code, exitUsage, exitUnreachable)
	}
}

func TestDefaultURL(t *testing.T) {
	dir := t.TempDir()
	for _, test := range []struct{ state, home, want string }{
		{dir + "/state", "", "sqlite://" + dir + "/state/distlock/locks.db"},
		{"", dir, "sqlite://" + dir + "/.local/state/distlock/locks.db"},
		{"relative", dir, "sqlite://" + dir + "/.local/state/distlock/locks.db"},
		{dir + "/a b#c?d%e", "", "sqlite://" + dir + "/a%20b%23c%3Fd%25e/distlock/locks.db"},
	} {
		unset(t, urlVariable)
		t.Setenv("XDG_STATE_HOME", test.state)
		t.Setenv("HOME", test.home)
		if got, err := (&app{local: true}).backendURL(); err != nil || got != test.want {
			t.Errorf("%+v: got %q, %v", test, got, err)
		}
		if code, _, err := inProcess("ls", "--local"); code != 0 || err != "distlock: no locks are held\n" {
			t.Errorf("%+v: ls: exit code %d, %s", test, code, err)
		}
		code, _, err := inProcess("ls")
		if code != 0 || strings.Count(err, "only this user on this host sees the locks") != 1 || !strings.Contains(err, "--local") {
			t.Errorf("%+v: got %d, %q; want a line that names the local default", test, code, err)
		}
	}
}

func TestNoHome(t *testing.T) {
	unset(t, urlVariable)
	for _, name := range []string{"XDG_STATE_HOME", "HOME"} {
		t.Setenv(name, "")
	}
	code, _, err := inProcess("ls")
	if code != exitUsage || !strings.Contains(err, "give --url sqlite:/path/to/locks.db") {
		t.Errorf("got %d, %q", code, err)
	}
	if code, _, err := inProcess("version"); code != 0 {
		t.Errorf("version needs no locks: got %d, %q", code, err)
	}
}

func TestVersionAndCompletion(t *testing.T) {
	for _, args := range []string{"version", "--version", "completion bash", "completion zsh", "completion fish", "completion powershell"} {
		code, out, err := inProcess(strings.Fields(args)...)
		if code != 0 || err != "" || !strings.Contains(out, "distlock") {
			t.Errorf("%s: got %d, %.60q, %q", args, code, out, err)
		}
	}
}

func TestHelp(t *testing.T) {
	for _, name := range []string{"run", "cron", "elect", "leader", "ls", "show", "unlock", "verify", "demo oversell", "version", "completion", ""} {
		args := strings.Fields(name)
		_, byFlag, _ := inProcess(append(args, "--help")...)
		code, byName, err := inProcess(append([]string{"help"}, args...)...)
		if code != 0 || err != "" || byFlag != byName || !strings.Contains(byName, "Usage:") {
			t.Errorf("help %s: got %d, %q, %q", name, code, byName, err)
		}
	}
}
