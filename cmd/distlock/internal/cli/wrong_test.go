//go:build unix

package cli

import (
	flags "flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

var update = flags.Bool("update", false, "write testdata/wrong.txt anew")

var wrongFile, _ = filepath.Abs("testdata/wrong.txt")

// What the command says to hundreds of wrong inputs is in a file: each line with a $ has an input, and the next line the exit
// code and the message. Variables of the environment stand before the arguments; CONFIG is the text of the user's config file.
// With -update the file is written anew, and what is wrong in any case still fails.
func TestWrongInputs(t *testing.T) {
	before := strings.Split(string(must.Get(os.ReadFile(wrongFile))(t)), "\n")
	w := newWrongWorld(t)
	answers := w.answers(t, before)
	if len(answers) < 300 {
		t.Errorf("%d inputs", len(answers))
	}
	var after []string
	for i := 0; i < len(before); i++ {
		after = append(after, before[i])
		input, ok := strings.CutPrefix(before[i], "$ ")
		if !ok {
			continue
		}
		got, said := answers[i], ""
		if i+1 < len(before) && regexp.MustCompile(`^\d`).MatchString(before[i+1]) {
			i++
			said = before[i]
		}
		if why := badMessage(got.code, got.out, got.err); why != "" {
			t.Errorf("%s\n%s: %d %s%s", input, why, got.code, got.out, got.err)
		}
		says := fmt.Sprintf("%d %s", got.code, strings.TrimSuffix(w.hide(got.err), "\n"))
		if said != says && !*update {
			t.Errorf("%s\ngot  %s\nwant %s", input, says, said)
		}
		after = append(after, says)
	}
	if *update {
		must.OK(t, os.WriteFile(wrongFile, []byte(strings.Join(after, "\n")), 0o644))
	}
}

var (
	// opened is what stands before a reason.
	opened = regexp.MustCompile(`^distlock: (\w+ "[^"]*": |list: )?((invalid request|backend unavailable): )?`)
	// foreignWords are how the reasons of drivers and libraries begin.
	foreignWords = regexp.MustCompile(`^(redis|pg|mysql|sqlite|zk|etcd|http|kube|s3|dead)lock: |^(dial|lookup|read|write|tls|operation|Error|ERROR|FATAL|strconv|rpc|context|EOF|Get|stat|pq|unable)\b|^failed to |^invalid character|^http: `)
	// whatIsRight are words that say what would be right, or that the server is who refuses.
	whatIsRight = regexp.MustCompile(`\bwants? |want: |did you mean |see distlock|--help$|known: |registered|\buse |give |needs |must |remove |minimum|make it first|is not (UTF-8|an SQLite database)|refuses|may not|has not the right|does(n't| not) know|has no |needs an argument|another|holds a|no such file`)
)

// missingRight is what servers say of a right that was never there.
var missingRight = regexp.MustCompile(`may not do this|has not the right|lacks a right|is not let in|refuses this user`)

// badMessage returns what is wrong with an answer, whatever the input was.
func badMessage(code int, out, err string) string {
	switch {
	case strings.Contains(out+err, "s3cr3t"):
		return "it tells a secret"
	case out != "":
		return "it has output"
	case !slices.Contains([]int{exitFailure, exitUsage, exitUnreachable, exitBusy, exitLost, exitCantRun, exitNotFound, 9}, code):
		return "the exit code is not documented"
	case !strings.HasPrefix(err, "distlock: ") || strings.Count(err, "\n") != 1:
		return "it is not one line"
	case foreignWords.MatchString(opened.ReplaceAllString(err, "")):
		return "it begins with the words of a driver"
	case code == exitUsage && !whatIsRight.MatchString(err):
		return "it does not say what would be right"
	case code != exitUsage && missingRight.MatchString(err):
		return "a missing right has another exit code"
	case len(err) > 420:
		return "it is long"
	}
	return ""
}

// A message that breaks a rule is found.
func TestBadMessages(t *testing.T) {
	const good = "distlock: run: no name; want one\n"
	for _, test := range []struct {
		code         int
		out, err, is string
	}{
		{64, "", good, ""},
		{64, "", "distlock: redis://:s3cr3t@h: want another\n", "it tells a secret"},
		{64, "x", good, "it has output"},
		{0, "", good, "the exit code is not documented"},
		{2, "", good, "the exit code is not documented"},
		{64, "", good + good, "it is not one line"},
		{64, "", "", "it is not one line"},
		{64, "", "run: no name; want one\n", "it is not one line"},
		{69, "", "distlock: open \"redis://h\": dial tcp: refused\n", "it begins with the words of a driver"},
		{69, "", "distlock: open \"redis://h\": redislock: refused\n", "it begins with the words of a driver"},
		{64, "", "distlock: run: no name\n", "it does not say what would be right"},
		{69, "", "distlock: list: backend unavailable: the server's user may not do this\n", "a missing right has another exit code"},
		{69, "", "distlock: " + strings.Repeat("x", 500) + "\n", "it is long"},
	} {
		if got := badMessage(test.code, test.out, test.err); got != test.is {
			t.Errorf("%d %q %q: got %q; want %q", test.code, test.out, test.err, got, test.is)
		}
	}
}

// wrongWorld is what the inputs refer to.
type wrongWorld struct {
	names map[string]string // of places, without braces
	hides *strings.Replacer
}

func newWrongWorld(t *testing.T) *wrongWorld {
	dir := t.TempDir()
	w := &wrongWorld{names: map[string]string{"dir": dir, "long": strings.Repeat("a", 3000), "nl": "\n"}}
	for name, mode := range map[string]os.FileMode{"noexec": 0o600, "public": 0o644, "twowords": 0o600} {
		writeFile(t, filepath.Join(dir, name), "s3cr3t-one s3cr3t-two\n", mode)
	}
	t.Chdir(dir)
	t.Setenv("XDG_STATE_HOME", dir)
	t.Setenv("HOME", dir)
	redis := testserver.Redis(t)
	do := func(args ...string) { t.Helper(); must.Get(redis.Do(args...))(t) }
	do("ACL", "SETUSER", "norights", "on", ">s3cr3t-word", "~*", "&*", "+ping")
	do("ACL", "SETUSER", "otherkeys", "on", ">s3cr3t-word", "~other:*", "&*", "+@all")
	do("RPUSH", "alist", "1")
	do("SET", "astring", "hello")
	w.names["redis"], w.names["postgres"] = redis.Addr(), hostOf(testserver.SharedPostgres(t).URL())

	locks := "sqlite:" + filepath.Join(dir, "locks.db")
	_, release := hold(t, locks, "held")
	t.Cleanup(release)
	_, made, _ := inProcess("token", "ci", "lock", "ci/")
	lines := regexp.MustCompile(`token: (\S+)\nline: +(.*)\n`).FindStringSubmatch(made)
	writeFile(t, filepath.Join(dir, "tokens"), lines[2]+"\n", 0o600)
	p := start(t, locks, "serve", "--listen", "127.0.0.1:0", "--drain", "0s", "--tokens", filepath.Join(dir, "tokens"))
	p.out.await(t, " serves ")
	w.names["serve"], w.names["token"] = regexp.MustCompile(`127\.\S+`).FindString(p.out.String()), lines[1]
	owner := start(t, locks, "lock", "--ttl", "1h", "--owner-file", filepath.Join(dir, "owner"), "mine")
	owner.must(0)
	w.names["url"] = locks
	var pairs []string
	for _, name := range []string{"url", "dir", "long", "redis", "postgres", "serve", "token"} {
		pairs = append(pairs, w.names[name], "{"+name+"}")
	}
	w.hides = strings.NewReplacer(pairs...)
	return w
}

func hostOf(url string) string { return regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(url) }

// varying is what differs from run to run.
var (
	varying = []struct {
		of *regexp.Regexp
		to string
	}{
		{regexp.MustCompile(`pid \d+ on [^\s,]+`), "pid PID on HOST"},
		{regexp.MustCompile(`\(registered: [^)]*\)`), "(registered: …)"},
		{regexp.MustCompile(`another [\d.]+s`), "another TIME"},
		{regexp.MustCompile(`distlock-\d+`), "distlock-NUMBER"},
		{regexp.MustCompile(`within [\d.]+s`), "within TIME"},
		{regexp.MustCompile(`for [\d.]+(ms|s)\b`), "for TIME"},
		{regexp.MustCompile(`after [\d.]+(ms|s)\b`), "after TIME"},
	}
	word = regexp.MustCompile(`(?:[^\s'"]|'[^']*'|"[^"]*")+`)
)

// hide replaces what differs each time.
func (w *wrongWorld) hide(s string) string {
	s = w.hides.Replace(s)
	for _, v := range varying {
		s = v.of.ReplaceAllString(s, v.to)
	}
	return s
}

// answer is what the command says.
type answer struct {
	code     int
	out, err string
}

var assignment = regexp.MustCompile(`^[A-Z_]+=`)

// answers runs the inputs among lines: those that set variables one after the other, the others beside each other, since some
// wait for a server.
func (w *wrongWorld) answers(t *testing.T, lines []string) map[int]answer {
	t.Setenv(urlVariable, w.names["url"])
	t.Setenv(ownerVariable, "")
	all, mu, places := map[int]answer{}, sync.Mutex{}, make(chan bool, 24)
	var wg sync.WaitGroup
	for i, line := range lines {
		input, ok := strings.CutPrefix(line, "$ ")
		if !ok || assignment.MatchString(input) {
			continue
		}
		wg.Go(func() {
			places <- true
			defer func() { <-places }()
			got := inTime(input, w.words(input))
			mu.Lock()
			defer mu.Unlock()
			all[i] = got
		})
	}
	wg.Wait()
	for i, line := range lines {
		if input, ok := strings.CutPrefix(line, "$ "); ok && assignment.MatchString(input) {
			t.Run("", func(t *testing.T) { all[i] = w.withVariables(t, input) })
		}
	}
	return all
}

// words splits an input as a shell does, and puts in what its names in braces mean.
func (w *wrongWorld) words(input string) (args []string) {
	for _, s := range word.FindAllString(input, -1) {
		s = regexp.MustCompile(`'([^']*)'|"([^"]*)"`).ReplaceAllString(s, "$1$2")
		s = strings.ReplaceAll(s, `\xff`, "\xff")
		for name, is := range w.names {
			s = strings.ReplaceAll(s, "{"+name+"}", is)
		}
		args = append(args, s)
	}
	return args
}

// withVariables runs an input that sets variables, or the config file.
func (w *wrongWorld) withVariables(t *testing.T, input string) answer {
	args := w.words(input)
	for assignment.MatchString(args[0]) {
		name, value, _ := strings.Cut(args[0], "=")
		args = args[1:]
		if name != "CONFIG" {
			t.Setenv(name, value)
			continue
		}
		path := configFile(t, value, 0o600)
		got := inTime(input, args)
		got.err = strings.ReplaceAll(got.err, path, "{config}")
		return got
	}
	return inTime(input, args)
}

// inTime runs the command, which must end.
func inTime(input string, args []string) answer {
	stuck := time.AfterFunc(patience, func() { panic("it does not end: " + input) })
	defer stuck.Stop()
	code, out, err := inProcess(args...)
	return answer{code, out, err}
}
