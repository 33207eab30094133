package cli

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// configFile makes the user's config file the only one, with this text.
func configFile(t *testing.T, text string, mode os.FileMode) (path string) {
	t.Helper()
	dir := t.TempDir()
	unset(t, urlVariable)
	t.Setenv("XDG_CONFIG_HOME", dir)
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	path = filepath.Join(dir, "distlock", "url")
	must.OK(t, os.MkdirAll(filepath.Dir(path), 0o700))
	writeFile(t, path, text, mode)
	before := systemFile
	systemFile = filepath.Join(dir, "etc-distlock.url")
	t.Cleanup(func() { systemFile = before })
	return path
}

func writeFile(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	must.OK(t, os.WriteFile(path, []byte(text), mode))
	must.OK(t, os.Chmod(path, mode))
}

// Cron starts commands without the variables of a login: a file says where the locks are.
func TestConfigFile(t *testing.T) {
	path := configFile(t, "# the fleet's\n\nmem:from-the-user\n", 0o644)
	writeFile(t, systemFile, "mem:from-the-host", 0o644)
	a := &app{err: os.Stderr}
	if got, err := a.backendURL(); got != "mem:from-the-user" || err != nil {
		t.Errorf("got %q, %v; want the user's file before the host's", got, err)
	}
	const tokenFile = "http://h/?password_file=/etc/token" // is no secret
	writeFile(t, path, tokenFile, 0o644)
	if got, err := a.backendURL(); got != tokenFile || err != nil {
		t.Errorf("got %q, %v; want %q", got, err, tokenFile)
	}
	must.OK(t, os.Remove(path))
	if got, err := a.backendURL(); got != "mem:from-the-host" || err != nil {
		t.Errorf("got %q, %v; want the host's file", got, err)
	}
	t.Setenv(urlVariable, "mem:from-the-variable")
	if got, err := a.backendURL(); got != "mem:from-the-variable" || err != nil {
		t.Errorf("got %q, %v; want the variable before any file", got, err)
	}
	a.local = true
	if got, err := a.backendURL(); !strings.HasPrefix(got, "sqlite:") || err != nil {
		t.Errorf("got %q, %v; want --local before all else", got, err)
	}
	a.url = text{"mem:from-a-flag", true}
	if got, err := a.backendURL(); err == nil {
		t.Errorf("got %q; want an error for --local beside --url", got)
	}
}

func TestBadConfigFile(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("file modes say nothing about other users there")
	}
	for _, test := range []struct {
		text string
		mode os.FileMode
		says string
	}{
		{"", 0o600, "got 0 lines; want one"},
		{"# nothing\n", 0o600, "got 0 lines; want one"},
		{"mem:a\nmem:b\n", 0o600, "got 2 lines; want one"},
		{"mem:a", 0o620, "chmod go-w"},
		{"mem:a", 0o602, "chmod go-w"},
		{"redis://:s3cr3t-word@127.0.0.1:1", 0o644, "chmod o-r"},
		{"redis://:abc@127.0.0.1:1", 0o644, "chmod o-r"},
		{"shard:?member=a=redis%3A%2F%2F%3As3cr3t-word%40127.0.0.1%3A1", 0o644, "chmod o-r"},
		{"quorum:?member=redis%3A%2F%2Fu%3As3cr3t-word%40127.0.0.1%3A1", 0o644, "chmod o-r"},
		{strings.Repeat("x", 100_000), 0o600, "want a small file"},
	} {
		path := configFile(t, test.text, test.mode)
		code, out, err := inProcess("ls")
		if code != exitUsage || out != "" || !strings.Contains(err, test.says) || !strings.Contains(err, path) || strings.Contains(err, "s3cr3t") {
			t.Errorf("%.40q, mode %o: got %d, %q, %q; want %q and the path", test.text, test.mode, code, out, err, test.says)
		}
	}
}

// A password from a config file is as secret as one from a flag.
func TestNoPasswordFromConfigFile(t *testing.T) {
	configFile(t, "redis://user:s3cr3t-word@127.0.0.1:1\n", 0o640)
	for _, args := range [][]string{{"ls"}, {"show", "x"}, {"run", "x", "--", "true"}} {
		if code, out, err := inProcess(args...); code != exitUnreachable || strings.Contains(out+err, "s3cr3t") {
			t.Errorf("%q: got %d, %q, %q", args, code, out, err)
		}
	}
}

// A relative path is another file for each working directory: the file is named, and a config file can't have one.
func TestRelativePath(t *testing.T) {
	path := configFile(t, "sqlite:locks.db\n", 0o600)
	t.Chdir(t.TempDir())
	dir := must.Get(os.Getwd())(t)
	want := "sqlite://" + dir + "/locks.db"
	if code, _, err := inProcess("ls"); code != exitUsage || !strings.Contains(err, want) {
		t.Errorf("in a config file: got %d, %q", code, err)
	}
	must.OK(t, os.Remove(path))
	for given, want := range map[string]string{
		"sqlite:locks.db": want, "sqlite:./a/../locks.db": want, "sqlite:my%20locks.db?synchronous=full": "sqlite://" + dir + "/my%20locks.db?synchronous=full",
	} {
		code, _, err := inProcess("--url", given, "ls")
		if code != 0 || !strings.Contains(err, "here it is "+want+"\n") {
			t.Errorf("%s: got %d, %q; want %s", given, code, err, want)
		}
	}
	for _, given := range []string{want, "sqlite:" + dir + "/locks.db"} {
		if code, _, err := inProcess("--url", given, "ls"); code != 0 || strings.Contains(err, "directory") {
			t.Errorf("%s: got %d, %q", given, code, err)
		}
	}
}

// Without a URL every host would run a job.
func TestCronWantsAServer(t *testing.T) {
	configFile(t, "sqlite:/x.db", 0o600)
	must.OK(t, os.Remove(filepath.Join(os.Getenv("XDG_CONFIG_HOME"), "distlock", "url")))
	if code, _, err := inProcess("cron", "x", "--", "true"); code != exitUsage || !strings.Contains(err, "each host would run the command") || !strings.Contains(err, "/etc/distlock.url") {
		t.Errorf("got %d, %q", code, err)
	}
	if code, _, err := inProcess("cron", "--local", "x", "--", "true"); code != 0 || err != "" {
		t.Errorf("--local: got %d, %q", code, err)
	}
}

// The wrong kind of server at a port is named, whichever kinds they are.
func TestAnotherKindOfServer(t *testing.T) {
	servers := map[string]string{
		"Redis": testserver.SharedRedis(t).URL(), "HTTP": testserver.SharedEtcd(t).URL(), "ZooKeeper": testserver.SharedZooKeeper(t).URL(),
		"PostgreSQL": testserver.SharedPostgres(t).URL(), "MySQL": testserver.SharedMariaDB(t).URL(),
	}
	urls := map[string]string{
		"Redis": "redis://%s", "HTTP": "etcd://%s", "ZooKeeper": "zk://%s", "PostgreSQL": "postgres://u:s3cr3t-word@%s/app", "MySQL": "mysql://u:s3cr3t-word@%s/app",
	}
	for speaks, server := range servers {
		addr := must.Get(url.Parse(server))(t).Host
		for wanted, form := range urls {
			t.Run(wanted+" of "+speaks, func(t *testing.T) {
				t.Parallel()
				if wanted == speaks {
					return
				}
				code, _, err := inProcess("--url", fmt.Sprintf(form, addr), "ls")
				if code != exitUnreachable || !strings.Contains(err, addr+" speaks "+speaks+", not ") || strings.Contains(err, "s3cr3t") || strings.Count(err, "\n") != 1 {
					t.Errorf("got %d, %q", code, err)
				}
			})
		}
	}
}

// A variable that is empty is a mistake, and the default would hide it.
func TestEmptyVariable(t *testing.T) {
	t.Setenv(urlVariable, "")
	for _, args := range [][]string{{"ls"}, {"show", "x"}, {"run", "x", "--", "true"}, {"unlock", "--force", "x"}, {"demo", "oversell"}} {
		if code, out, err := inProcess(args...); code != exitUsage || out != "" || !strings.Contains(err, urlVariable+" is set but empty") {
			t.Errorf("%q: got %d, %q, %q", args, code, out, err)
		}
	}
}

// So is an empty flag: without it, access control would be off, or the output another one.
func TestEmptyFlags(t *testing.T) {
	t.Setenv(urlVariable, "mem:empty")
	for _, args := range []string{
		"serve --listen=", "serve --tokens=", "serve --tls-cert=", "serve --tls-key=", "serve --client-ca=",
		"lock --ttl 1m --owner-file= x", "renew --ttl 1m --owner-file= x", "release --owner-file= x",
		"advise --metrics=",
	} {
		t.Run(args, func(t *testing.T) {
			if code, out, err := inProcess(strings.Fields(args)...); code != exitUsage || out != "" || !strings.Contains(err, "want ") {
				t.Errorf("got %d, %q, %q", code, out, err)
			}
		})
	}
}

// Nothing that another client chose moves the cursor of the terminal.
func TestMessagesArePlain(t *testing.T) {
	err := errors.New("held by a\x1b[2J\nb")
	for _, got := range []string{message(err, nil), oneLine(err)} {
		if !strings.Contains(got, `held by a\x1b[2J; b`) {
			t.Errorf("got %q", got)
		}
	}
	// As pgx has it.
	if got := message(errors.New("open \"x\": no connection:\n\ta: refused\n\ta: refused\n\tb: late\n"), nil); got != `distlock: open "x": no connection: a: refused; b: late`+"\n" {
		t.Errorf("got %q", got)
	}
}
