//go:build linux

package clients

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// nodeTests returns the command that runs own tests of the client for Node.
func nodeTests(tb testing.TB, file string) *exec.Cmd {
	tb.Helper()
	cmd := command(tb, "node", file)
	cmd.Dir = filepath.Join(clients, "node")
	cmd.Env = append(cmd.Env, "DISTLOCK_COMMAND="+distlockCommand(tb))
	return cmd
}

// newProject makes an npm project in which the package is installed, with others if need be, and returns its folder.
func newProject(t *testing.T, kind string, more ...string) string {
	t.Helper()
	npm, dir := testserver.Tool(t, "npm"), t.TempDir()
	must.OK(t, run(exec.Command(filepath.Join(clients, "node", "package"), "v1.2.3", dir)))
	must.OK(t, os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"private": true, "type": "`+kind+`"}`), 0o600))
	args := append([]string{"install", "--silent", "--no-audit", "--no-fund", "--prefer-offline", "./distlock-1.2.3.tgz"}, more...)
	cmd := exec.Command(npm, args...)
	cmd.Dir = dir
	must.OK(t, run(cmd))
	return dir
}

// in returns a command of Node in a project.
func in(t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(testserver.Tool(t, "node"), args...)
	cmd.Dir = dir
	return cmd
}

// The package takes a lock from an empty project, for import and for require, and brings no other package.
func TestNodePackage(t *testing.T) {
	t.Parallel()
	_, url := serverProcess(t, testserver.SharedRedis(t).URL())
	dir := newProject(t, "module")
	for file, head := range map[string]string{
		"imports.mjs":  `import { Locks } from "distlock";`,
		"requires.cjs": `const { Locks } = require("distlock");`,
	} {
		text := head + ` void new Locks(process.argv[2]).using(process.argv[3], { wait: 0 }, (lease) => console.log("fence", lease.fence));`
		must.OK(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
		out, err := in(t, dir, file, url, newName()).CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), "fence ") {
			t.Errorf("%s: %v\n%s", file, err, out)
		}
	}
	if entries := must.Get(filepath.Glob(filepath.Join(dir, "node_modules", "[^.]*")))(t); len(entries) != 1 {
		t.Errorf("the package brought others: %v", entries)
	}
}

// A program that uses all of the types compiles for import and for require, and works. It gets the compiler from npm.
func TestLongNodeTypes(t *testing.T) {
	_, url := serverProcess(t, testserver.SharedRedis(t).URL())
	source := must.Get(os.ReadFile(filepath.Join(clients, "node", "tests", "types", "usage.ts")))(t)
	for _, kind := range []string{"module", "commonjs"} {
		dir := newProject(t, kind, "typescript@5.9", "@types/node@18")
		must.OK(t, os.WriteFile(filepath.Join(dir, "usage.ts"), source, 0o600))
		for _, module := range []string{"node16", "nodenext"} {
			must.OK(t, run(in(t, dir, "node_modules/typescript/bin/tsc", "--strict", "--noUncheckedIndexedAccess", "--target", "es2022",
				"--lib", "es2022,esnext.disposable", "--module", module, "usage.ts")))
		}
		out, err := in(t, dir, "usage.js", url).CombinedOutput()
		if err != nil || string(out) != "right\n" {
			t.Errorf("%s: %v\n%s", kind, err, out)
		}
	}
}

// The client's own tests that take minutes: servers and clients are killed and stopped all the time.
func TestLongNode(t *testing.T) {
	t.Parallel()
	must.OK(t, run(nodeTests(t, "tests/long.mjs")))
}
