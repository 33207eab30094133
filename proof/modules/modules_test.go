// Package modules tests what the modules of this repository require of their users.
package modules

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/distlock/distlock/internal/testkit/must"
)

const (
	root = "../.."
	main = "github.com/distlock/distlock"
)

// module is a go.mod; see go help mod edit.
type module struct {
	Module  struct{ Path string }
	Go      string
	Require []struct{ Path, Version string }
	Replace []any
}

func read(t *testing.T, folder string) module {
	t.Helper()
	text := output(t, folder, "mod", "edit", "-json")
	var m module
	must.OK(t, json.Unmarshal([]byte(text), &m))
	return m
}

// output runs go outside of the workspace.
func output(t *testing.T, folder string, args ...string) string {
	t.Helper()
	return command(t, folder, []string{"GOWORK=off", "GOFLAGS=-mod=mod"}, "go", args...)
}

// folders lists the folders of all modules.
func folders(t *testing.T) []string {
	t.Helper()
	text := output(t, root, "work", "edit", "-json", "go.work")
	var work struct{ Use []struct{ DiskPath string } }
	must.OK(t, json.Unmarshal([]byte(text), &work))
	var all []string
	for _, u := range work.Use {
		all = append(all, u.DiskPath)
	}
	if len(all) < 8 {
		t.Fatalf("go.work joins %v only", all)
	}
	return all
}

// A program takes the modules from a clone before there is a release, and nothing in the clone changes.
func TestLongUseOfAClone(t *testing.T) {
	app := t.TempDir()
	files := map[string]string{
		"go.mod": "module shop\n\ngo 1.24\n",
		"main.go": `package main

import (
	"context"

	"github.com/distlock/distlock"
	_ "github.com/distlock/distlock/backend/redislock"
)

func main() {
	if locks, err := distlock.Open(context.Background(), "redis://localhost", nil); err == nil {
		locks.Close()
	}
}
`}
	for name, text := range files {
		must.OK(t, os.WriteFile(filepath.Join(app, name), []byte(text), 0o600))
	}
	clone := func() (text string) {
		for _, name := range []string{"go.work", "go.work.sum", "go.mod"} {
			b := must.Get(os.ReadFile(filepath.Join(root, name)))(t)
			text += string(b)
		}
		return text
	}
	before := clone()
	command(t, root, nil, "internal/modules.sh", "use", app)
	for _, args := range [][]string{{"mod", "tidy"}, {"vet", "."}, {"doc", main + ".Mutex.Do"}} {
		output(t, app, args...)
	}
	if clone() != before {
		t.Error("a file of the clone has changed")
	}
	if m := read(t, app); len(m.Require) == 0 || m.Require[0].Path != main {
		t.Errorf("the program requires %v", m.Require)
	}
}

// The core, drivertest and the backends without a client library have no requirements.
func TestRootRequiresNothing(t *testing.T) {
	if m := read(t, root); len(m.Require) != 0 || m.Go != "1.23.0" {
		t.Errorf("go.mod has go %s and requires %v", m.Go, m.Require)
	}
	if _, err := os.Stat(filepath.Join(root, "go.sum")); err == nil {
		t.Error("the root module has a go.sum")
	}
}

// go install PACKAGE@VERSION refuses a module with replacements.
func TestNoReplacements(t *testing.T) {
	for _, folder := range folders(t) {
		if m := read(t, filepath.Join(root, folder)); len(m.Replace) != 0 {
			t.Errorf("%s has replacements", m.Module.Path)
		}
	}
}

// users are modules that a user of a backend may have already, at versions some years old.
var users = map[string]string{
	"github.com/redis/go-redis/v9":        "v9.7.0",
	"github.com/redis/rueidis":            "v1.0.45",
	"github.com/aws/aws-sdk-go-v2/config": "v1.27.0",
	"github.com/go-sql-driver/mysql":      "v1.8.1",
	"github.com/jackc/pgx/v5":             "v5.5.5",
	"go.etcd.io/etcd/client/v3":           "v3.5.10",
	"google.golang.org/grpc":              "v1.59.0",
	"google.golang.org/protobuf":          "v1.31.0",
	"modernc.org/sqlite":                  "v1.29.0",
	"github.com/spf13/cobra":              "v1.8.0",
	"go.uber.org/zap":                     "v1.26.0",
	"golang.org/x/net":                    "v0.17.0",
	"golang.org/x/sys":                    "v0.16.0",
	"golang.org/x/text":                   "v0.14.0",
	"github.com/prometheus/client_golang": "v1.17.0",
}

// moves lists the user's modules whose versions each module changes: its client, and the client's own
// requirements.
var moves = map[string][]string{
	".":                  {"go"},
	"backend/kubelock":   {"go"},
	"backend/mysqllock":  {"go"},
	"backend/pglock":     {"github.com/jackc/pgx/v5", "go", "golang.org/x/text"},
	"backend/redislock":  {"github.com/redis/go-redis/v9", "go", "golang.org/x/sys"},
	"backend/s3lock":     {"github.com/aws/aws-sdk-go-v2/config", "go"},
	"backend/sqlitelock": {"go", "modernc.org/sqlite"},
	"backend/etcdlock": {
		"go", "go.etcd.io/etcd/client/v3", "golang.org/x/net", "golang.org/x/sys", "golang.org/x/text", "google.golang.org/protobuf",
	},
}

// TestLongModulesMoveOnlyTheirClient adds each backend to a user's module, and compares the versions
// that Go selects before and after.
func TestLongModulesMoveOnlyTheirClient(t *testing.T) {
	before := selected(t, "")
	for backend, want := range moves {
		t.Run(backend, func(t *testing.T) {
			after := selected(t, path.Join(main, backend))
			var moved []string
			for name, version := range before {
				if after[name] != version {
					moved = append(moved, name)
					t.Logf("%s: %s -> %s", name, version, after[name])
				}
			}
			slices.Sort(moved)
			if !slices.Equal(moved, want) {
				t.Errorf("%s moves %q, want %q", backend, moved, want)
			}
		})
	}
}

// selected returns the versions, by path, of Go and of a user's modules in a module that also requires
// a backend.
func selected(t *testing.T, backend string) map[string]string {
	t.Helper()
	dir := t.TempDir()
	var text strings.Builder
	text.WriteString("module example.com/user\n\ngo 1.21\n\n")
	for name, version := range users {
		fmt.Fprintf(&text, "require %s %s\n", name, version)
	}
	if backend != "" {
		fmt.Fprintf(&text, "require %s v0.0.0\n", backend)
	}
	here := must.Get(filepath.Abs(root))(t)
	for _, folder := range folders(t) {
		fmt.Fprintf(&text, "replace %s => %s\n", path.Join(main, folder), filepath.Join(here, folder))
	}
	must.OK(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte(text.String()), 0o600))
	all := map[string]string{}
	for line := range strings.Lines(output(t, dir, "list", "-m", "-f", "{{.Path}} {{.Version}}", "all")) {
		name, version, _ := strings.Cut(strings.TrimSpace(line), " ")
		if users[name] != "" {
			all[name] = version
		}
	}
	all["go"] = read(t, dir).Go
	return all
}
