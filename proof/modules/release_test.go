package modules

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// TestLongRelease releases a copy of this tree, and installs the command from it as users do.
func TestLongRelease(t *testing.T) {
	version := fmt.Sprintf("v0.0.1-test.%d", time.Now().UnixNano())
	repository := filepath.Join(t.TempDir(), "repository")
	must.OK(t, os.Mkdir(repository, 0o700))
	for _, e := range must.Get(os.ReadDir(root))(t) {
		from, to := filepath.Join(root, e.Name()), filepath.Join(repository, e.Name())
		switch {
		case e.Name() == ".git": // it changes while other tests build
		case e.IsDir():
			must.OK(t, os.CopyFS(to, os.DirFS(from)))
		default:
			must.OK(t, os.WriteFile(to, must.Get(os.ReadFile(from))(t), must.Get(e.Info())(t).Mode()))
		}
	}
	git := func(args ...string) string { return command(t, repository, nil, "git", args...) }
	git("init", "-q")
	git("config", "user.name", "test")
	git("config", "user.email", "test@example.com")
	git("add", "-A")
	git("commit", "-q", "-m", "all")

	if plan := command(t, repository, nil, "make", "-s", "release", "VERSION="+version); !strings.Contains(plan, "  backend/redislock/"+version+"\n") {
		t.Errorf("the plan is\n%s", plan)
	}
	expect.Equal(t, git("tag"), "", "without DRY_RUN=no it makes tags")
	command(t, repository, nil, "make", "-s", "release", "VERSION="+version, "DRY_RUN=no")
	if git("status", "--porcelain") != "" || !strings.Contains(git("tag"), "cmd/distlock/"+version) {
		t.Errorf("status %q, tags %q", git("status", "--porcelain"), git("tag"))
	}
	changelog, err := os.ReadFile(filepath.Join(repository, "CHANGELOG.md"))
	_, changes, _ := strings.Cut(string(changelog), "\n- ")
	change, _, _ := strings.Cut(changes, "\n")
	if notes := git("tag", "-n999", "-l", version); change == "" || !strings.Contains(notes, change) || strings.Contains(notes, "## Unreleased") {
		t.Errorf("the notes of the release are %q", notes)
	}
	if err != nil || !strings.Contains(string(changelog), "\n## Unreleased\n\n## "+version+" (") {
		t.Errorf("the changelog does not name the release: %v", err)
	}
	again := exec.Command("make", "-s", "release", "VERSION="+version+"1")
	again.Dir = repository
	if out, err := again.CombinedOutput(); err == nil || !strings.Contains(string(out), `nothing under "## Unreleased"`) {
		t.Errorf("a second release without notes: %v, %s", err, out)
	}

	cache := strings.TrimSpace(command(t, root, nil, "go", "env", "GOMODCACHE"))
	t.Cleanup(func() { forget(t, cache, version) })
	home := t.TempDir()
	env := []string{
		"GOWORK=off", "GOBIN=" + home, "GOFLAGS=-modcacherw", "GOPRIVATE=" + main + "," + main + "/*",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url.file://" + filepath.ToSlash(repository) + ".insteadOf", "GIT_CONFIG_VALUE_0=https://" + main,
	}
	command(t, home, env, "go", "install", main+"/cmd/distlock@"+version, main+"/cmd/distlock/distlock-all@"+version)
	for _, program := range []string{"distlock", "distlock-all"} {
		if got := command(t, home, nil, filepath.Join(home, program), "version"); !strings.HasPrefix(got, "distlock "+version+" ") {
			t.Errorf("version of %s: %q", program, got)
		}
	}
}

// forget removes a version from the module cache, where go install has put it.
func forget(t *testing.T, cache, version string) {
	for _, folder := range []string{filepath.Join(cache, filepath.Dir(main)), filepath.Join(cache, "cache", "download", main)} {
		err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if strings.HasSuffix(path, "@"+version) {
				if err := os.RemoveAll(path); err != nil {
					return err
				}
				return filepath.SkipDir
			}
			if strings.HasPrefix(d.Name(), version+".") {
				return os.Remove(path)
			}
			return nil
		})
		expect.OK(t, err)
	}
}

// command runs a program in a folder, and returns its output.
func command(t *testing.T, folder string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = folder, append(os.Environ(), env...)
	var failed strings.Builder
	cmd.Stderr = &failed
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, failed.String())
	}
	return string(out)
}
