//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// light prepares the command without all backends, which finds what it becomes in folder. It is this program.
func light(t *testing.T, folder string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, must.Get(os.Executable())(t), args...)
	cmd.Env = append(os.Environ(), asCommand+"=1", "PATH="+folder+":/usr/bin:/bin")
	return cmd
}

// A URL of etcd, wherever it is, makes another program of the process: the same pid, arguments, input and exit code.
func TestBecomesAnotherCommand(t *testing.T) {
	folder, home := t.TempDir(), t.TempDir()
	script := "#!/bin/sh\necho $$ \"$@\"\ncat\nexit 42\n"
	must.OK(t, os.WriteFile(filepath.Join(folder, "distlock-all"), []byte(script), 0o700))
	must.OK(t, os.Mkdir(filepath.Join(home, "distlock"), 0o700))
	must.OK(t, os.WriteFile(filepath.Join(home, "distlock", "url"), []byte("etcd://h\n"), 0o600))
	for _, c := range []struct{ env, args string }{
		{"", "--url etcd://h run name -- true"},
		{"", "ls --url=ETCDS://h"},
		{"", "verify quorum:?member=redis://h&member=%65tcd%3A//h&member=zk://h"},
		{"", "ls --url shard:?member=a%3Dquorum%3A%3Fmember%3Detcd%253A%252F%252Fh"},
		{"DISTLOCK_URL=etcd://h", "ls"},
		{"XDG_CONFIG_HOME=" + home, "ls"},
	} {
		cmd := light(t, folder, strings.Fields(c.args)...)
		cmd.Env = append(cmd.Env, c.env)
		cmd.Stdin = strings.NewReader("input")
		out, err := cmd.Output()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 42 {
			t.Errorf("%v: %v", c, err)
		}
		expect.Equal(t, string(out), fmt.Sprintf("%d %s\ninput", cmd.Process.Pid, c.args), c.args)
	}
}

// Whoever has not the other command is told what is missing, and only if etcd is asked for.
func TestOtherCommandIsMissing(t *testing.T) {
	url := "sqlite:" + filepath.Join(t.TempDir(), "locks.db")
	out, err := light(t, t.TempDir(), "--url", url, "run", "etcd:name", "--", "true").CombinedOutput()
	if err != nil {
		t.Errorf("a name like a URL: %v, %s", err, out)
	}
	cmd := light(t, t.TempDir(), "--url", "etcd://h", "run", "name", "--", "true")
	out, _ = cmd.CombinedOutput()
	expect.Equal(t, cmd.ProcessState.ExitCode(), 64, "exit code")
	if !strings.Contains(string(out), "distlock-all is neither beside it nor on the PATH; want: go install ") {
		t.Errorf("%s", out)
	}
}

// What only looks like a URL of etcd or S3 leaves the command as it is.
func TestStaysAsItIs(t *testing.T) {
	folder, url := t.TempDir(), "sqlite:"+filepath.Join(t.TempDir(), "locks.db")
	must.OK(t, os.WriteFile(filepath.Join(folder, "distlock-all"), []byte("#!/bin/sh\necho another\n"), 0o700))
	for _, args := range [][]string{
		{"--url", url, "run", "name", "--", "echo", "s3://bucket/x", "--url=etcd://h"},
		{"--url", url, "run", "name", "-c", "echo s3://bucket/x"},
		{"--url", "redis://redis3:6379", "version"},
	} {
		out, err := light(t, folder, args...).CombinedOutput()
		if err != nil || strings.Contains(string(out), "another") {
			t.Errorf("%v: %v, %s", args, err, out)
		}
	}
}

// If what should have all backends is the command itself, it does not become that again and again.
func TestOtherCommandIsItself(t *testing.T) {
	folder := t.TempDir()
	must.OK(t, os.Symlink(must.Get(os.Executable())(t), filepath.Join(folder, "distlock-all")))
	cmd := light(t, folder, "--url", "etcd://h", "ls")
	out, _ := cmd.CombinedOutput()
	expect.Equal(t, cmd.ProcessState.ExitCode(), 64, "exit code")
	if !strings.Contains(string(out), "what is called distlock-all is this one again; want: go install ") {
		t.Errorf("%s", out)
	}
}

// With etcd, the job runs below the process that was started. Both commands know the same schemes. What another version has
// become refuses to work.
func TestOtherCommand(t *testing.T) {
	folder := t.TempDir()
	build(t, folder, "-ldflags=-w", ".", "./distlock-all")
	cmd := exec.Command(filepath.Join(folder, "distlock"), "--url", testserver.SharedEtcd(t).URL(), "run", t.Name(), "--", "sh", "-c", "echo $PPID $DISTLOCK_REPLACED; exit 7")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, _ := cmd.Output()
	expect.Equal(t, cmd.ProcessState.ExitCode(), 7, errs.String())
	expect.Equal(t, string(out), fmt.Sprintln(cmd.Process.Pid), "the parent of the job")

	lists := map[string]string{}
	for _, program := range []string{"distlock", "distlock-all"} {
		refused, _ := exec.Command(filepath.Join(folder, program), "--url", "nosuch://h", "ls").CombinedOutput()
		lists[program] = string(refused)
	}
	if lists["distlock"] != lists["distlock-all"] || !strings.Contains(lists["distlock"], "registered: etcd, ") {
		t.Errorf("the commands know other schemes, see rareSchemes: %q", lists)
	}

	other := exec.Command(filepath.Join(folder, "distlock-all"), "version")
	other.Env = append(os.Environ(), "DISTLOCK_REPLACED=v0.0.1")
	out, _ = other.CombinedOutput()
	if expect.Equal(t, other.ProcessState.ExitCode(), 64, string(out)); !strings.Contains(string(out), "of v0.0.1; want the same of both") {
		t.Errorf("%s", out)
	}
}

// The command has no client of etcd or S3, and so nothing of gRPC, protobuf and AWS that would be initialised at each start.
func TestStartWithoutEtcd(t *testing.T) {
	deps := string(must.Get(exec.Command("go", "list", "-deps", ".").Output())(t))
	for _, heavy := range []string{"go.etcd.io/", "google.golang.org/grpc", "github.com/aws/"} {
		if _, at, found := strings.Cut(deps, "\n"+heavy); found {
			at, _, _ = strings.Cut(at, "\n")
			t.Errorf("the command has %s%s", heavy, at)
		}
	}
}
