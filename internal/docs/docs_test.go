// Package docs tests the project's documents: what they quote, name and link to exists.
package docs

import (
	"encoding/xml"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

const root = "../.."

// documents returns all Markdown files, by path from root.
func documents(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "bench/*.md", "clients/*/*.md", "examples/*.md"} {
		paths := must.Get(filepath.Glob(filepath.Join(root, pattern)))(t)
		for _, path := range paths {
			text := must.Get(os.ReadFile(path))(t)
			rel, _ := filepath.Rel(root, path)
			texts[rel] = string(text)
		}
	}
	if len(texts) < 6 {
		t.Fatalf("found %d documents only", len(texts))
	}
	return texts
}

// A browser draws nothing of a file that is no XML.
func TestPicturesAreSmallAndWellFormed(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(root, "docs", "*.svg"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("found %d pictures, %v", len(paths), err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil || len(text) > 10_000 {
			t.Errorf("%s has %d bytes, %v; want 10000 at most", path, len(text), err)
		}
		expect.OK(t, xml.Unmarshal(text, new(struct{})), path)
	}
}

// A short job runs on each host that copies a line which skips it without a minimum hold.
func TestSkippedJobsHaveAMinimumHold(t *testing.T) {
	texts := documents(t)
	for _, name := range []string{"root.go", "run.go", "cron.go"} {
		path := filepath.Join("cmd/distlock/internal/cli", name)
		text := must.Get(os.ReadFile(filepath.Join(root, path)))(t)
		texts[path] = string(text)
	}
	cron := 0
	for name, text := range texts {
		for _, line := range strings.Split(text, "\n") {
			if strings.Contains(line, "distlock cron ") {
				cron++
			}
			if strings.Contains(line, "distlock run ") && strings.Contains(line, "--skip-ok") && !strings.Contains(line, "--min-hold") {
				t.Errorf("%s: %s", name, line)
			}
		}
	}
	if cron < 8 {
		t.Errorf("%d lines name distlock cron, which keeps a minimum hold by itself", cron)
	}
}

// A block of code is quoted from a file that compiles and runs, named in a comment before it.
func TestSnippetsAreQuoted(t *testing.T) {
	block := regexp.MustCompile("(?s)(?:<!-- from (\\S+) -->\n)?```(?:go|python|js|java)\n(.*?)```")
	quoted := 0
	for name, text := range documents(t) {
		for _, m := range block.FindAllStringSubmatch(text, -1) {
			if m[1] == "" {
				t.Errorf("%s: a block does not say where it is from:\n%s", name, m[2])
				continue
			}
			source, err := os.ReadFile(filepath.Join(root, m[1]))
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if !strings.Contains(flat(string(source)), flat(m[2])) {
				t.Errorf("%s: this is not in %s:\n%s", name, m[1], m[2])
			}
			quoted++
		}
	}
	if quoted == 0 {
		t.Error("no snippet found")
	}
}

// flat is text without indentation and blank lines.
func flat(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

func TestLinksLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	for name, text := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			expect.OK(t, expect.Err(os.Stat(filepath.Join(root, filepath.Dir(name), m[1]))), name)
		}
	}
}

// The map has every page, so that each can be found.
func TestEveryPageIsInTheMap(t *testing.T) {
	texts := documents(t)
	for name := range texts {
		page, inDocs := strings.CutPrefix(filepath.ToSlash(name), "docs/")
		if inDocs && page != "README.md" && !strings.Contains(texts["docs/README.md"], "("+page+")") {
			t.Errorf("docs/README.md has no link to %s", page)
		}
	}
}

// The tests and checks that the track record and the table of threats name are there.
func TestTrackRecordNamesWhatExists(t *testing.T) {
	text := documents(t)["docs/track-record.md"]
	text += documents(t)["SECURITY.md"]
	checks := map[string]bool{}
	for _, c := range drivertest.Checks() {
		checks[c.Name] = true
	}
	for _, m := range regexp.MustCompile("`([a-z]+/[a-z-]+)`").FindAllStringSubmatch(text, -1) {
		if !checks[m[1]] && m[1] != "a/b" && !strings.HasPrefix(m[1], "proof/") {
			t.Errorf("there is no check %s", m[1])
		}
	}
	var tests strings.Builder
	must.OK(t, filepath.WalkDir(root, func(file string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(file, "_test.go") {
			return err
		}
		source, err := os.ReadFile(file)
		tests.Write(source)
		return err
	}))
	names := regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(text, -1)
	if len(names) < 10 {
		t.Fatalf("found %d names only", len(names))
	}
	for _, name := range names {
		if !strings.Contains(tests.String(), "func "+name+"(") {
			t.Errorf("there is no test %s", name)
		}
	}
}

// Every backend runs the conformance suite.
func TestEveryBackendRunsTheSuite(t *testing.T) {
	dirs, err := filepath.Glob(filepath.Join(root, "backend", "*"))
	if err != nil || len(dirs) < 4 {
		t.Fatalf("found %d backends, %v", len(dirs), err)
	}
	for _, dir := range dirs {
		if filepath.Base(dir) == "all" {
			continue
		}
		if filepath.Base(dir) == "httplock" {
			dir = filepath.Join(root, "proof", "served") // its server is another module
		}
		source, err := os.ReadFile(filepath.Join(dir, "conformance_test.go"))
		if err != nil || !strings.Contains(string(source), "drivertest.Run(") {
			t.Errorf("%s does not run drivertest in conformance_test.go: %v", dir, err)
		}
	}
}

// Every example is tested, and has a line in the list of them.
func TestEveryExampleIsListed(t *testing.T) {
	list := documents(t)["examples/README.md"]
	mains, err := filepath.Glob(filepath.Join(root, "examples", "*", "main.go"))
	if err != nil || len(mains) < 5 {
		t.Fatalf("found %d examples, %v", len(mains), err)
	}
	for _, main := range mains {
		dir := filepath.Dir(main)
		expect.OK(t, expect.Err(os.Stat(filepath.Join(dir, "main_test.go"))), "an example without a test")
		if link := "(" + filepath.Base(dir) + "/main.go)"; !strings.Contains(list, link) {
			t.Errorf("examples/README.md has no %s", link)
		}
	}
}

// Measured speed stands in docs/performance.md and bench/RESULTS.md only, which the benchmarks write, and simulated speed in docs/scale.md. Elsewhere it would grow old.
func TestSpeedStandsInOneDocument(t *testing.T) {
	speed := regexp.MustCompile(`(?i)[0-9] ?[kM]?/s\b|[0-9] ?([kM]|thousand|million)? ?(acquisitions|pairs|turns|locks)? ?(a|per) second\b|[0-9] ?k \||[0-9] ?µs|\bp(50|99)\b.{0,20}[0-9]|[0-9](\.[0-9]+)? times (as fast|faster)|[0-9] ?% (faster|slower)`)
	measured, simulated := filepath.Join("docs", "performance.md"), filepath.Join("docs", "scale.md")
	texts := documents(t)
	if !speed.MatchString(texts[measured]) {
		t.Errorf("the pattern finds no speed in %s", measured)
	}
	for name, text := range texts {
		if name == measured || name == simulated || name == filepath.Join("bench", "RESULTS.md") {
			continue
		}
		for i, line := range strings.Split(text, "\n") {
			if found := speed.FindString(line); found != "" {
				t.Errorf("%s:%d: %q is a measured speed: refer to docs/performance.md", name, i+1, found)
			}
		}
	}
}
