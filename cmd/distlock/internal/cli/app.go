package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/distlock/distlock"
)

// urlVariable is the environment variable that stands in for --url.
const urlVariable = "DISTLOCK_URL"

// app is one run of the program.
type app struct {
	args       []string // of the program
	url        text     // --url
	local      bool     // --local
	location   string   // the URL that was opened
	everywhere bool     // the command is started on many hosts, and from any directory
	out        io.Writer
	err        io.Writer
	secrets    []string // are replaced in messages
}

func (a *app) printf(format string, args ...any) { fmt.Fprintf(a.out, format, args...) }

func (a *app) warnf(format string, args ...any) { a.warn(fmt.Errorf(format, args...)) }

// warn prints an error. If that fails too, there is no other way to report it.
func (a *app) warn(err error) { _, _ = io.WriteString(a.err, message(err, a.secrets)) }

// background returns a form of warnf that never blocks, as a terminal does after Ctrl-S. It drops messages while many
// wait. flush waits until earlier messages are written, for a second at most.
func (a *app) background() (warnf func(format string, args ...any), flush func()) {
	queue := make(chan func(), 16)
	go func() {
		for write := range queue {
			write()
		}
	}()
	warnf = func(format string, args ...any) {
		select {
		case queue <- func() { a.warnf(format, args...) }:
		default:
		}
	}
	return warnf, func() {
		limit, written := time.After(time.Second), make(chan struct{})
		select {
		case queue <- func() { close(written) }:
		case <-limit:
			return
		}
		select {
		case <-written:
		case <-limit:
		}
	}
}

// exactly returns a check for n arguments, which what describes.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == n {
			return nil
		}
		return usage("%s: got %d arguments; want %s", cmd.Name(), len(args), what)
	}
}

// onePrefix is a check for one argument or none.
func onePrefix(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usage("%s: got %d arguments; want one prefix or none", cmd.Name(), len(args))
	}
	return nil
}

// The exit codes. Those above 63 follow sysexits.h and the shell.
const (
	exitFailure     = 1
	exitUsage       = 64
	exitUnreachable = 69
	exitBusy        = 75
	exitLost        = 76
	exitCantRun     = 126
	exitNotFound    = 127
	exitSignal      = 128 // and the signal's number
)

// exitError ends the program with a code. Without err, nothing is printed.
type exitError struct {
	code        int
	err         error
	interrupted bool // by SIGINT
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func exit(code int, format string, args ...any) error {
	return &exitError{code: code, err: fmt.Errorf(format, args...)}
}

func usage(format string, args ...any) error { return exit(exitUsage, format, args...) }

// codeOf returns the exit code for an error.
func codeOf(err error) int {
	var e *exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return e.code
	case errors.Is(err, distlock.ErrInvalid), errors.Is(err, distlock.ErrUnsupported):
		return exitUsage
	case errors.Is(err, context.Canceled):
		return exitSignal + 2
	case errors.Is(err, distlock.ErrUnavailable):
		return exitUnreachable
	}
	return exitFailure
}

// message formats an error as one line without passwords.
func message(err error, secrets []string) string {
	var e *exitError
	if errors.As(err, &e) && e.err == nil {
		return ""
	}
	msg := inner().ReplaceAllString(strings.ReplaceAll(joinLines(reason(err)), ": distlock: ", ": "), ": ")
	return "distlock: " + plain(scrub(msg, secrets)) + "\n"
}

// inner is how a backend's error begins in another one, which has said the same.
var inner = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`: (redis|pg|mysql|sqlite|zk|etcd|http|kube|s3)lock: (\w+ ("(\\.|[^"])*"|[\w+]+://\S+)( at \S+)?: |list: )?`)
})

var userinfo = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(//[^\s:/@]*):[^\s"]*@`) })

// scrub removes passwords. Drivers and flags already leave them out of their errors; this is the
// last line of defence.
func scrub(msg string, secrets []string) string {
	for _, s := range secrets {
		msg = strings.ReplaceAll(msg, s, "xxxxx")
	}
	return userinfo().ReplaceAllString(msg, "$1:xxxxx@")
}

// secretsOf returns the passwords of the URLs in the arguments and the environment.
func secretsOf(args []string) []string {
	var found []string
	for _, arg := range append([]string{os.Getenv(urlVariable)}, args...) {
		if i := strings.Index(arg, "="); strings.HasPrefix(arg, "--") && i > 0 {
			arg = arg[i+1:]
		}
		found = append(found, passwordsOf(strings.TrimLeft(arg, "-"))...) // also of a URL that passes for a flag
	}
	return found
}

// passwordsOf returns the passwords of a URL, both escaped and unescaped, even if the URL is
// malformed. It omits short ones: replacing them would garble messages, and so reveal them.
func passwordsOf(rawURL string) []string {
	var found []string
	for _, s := range secretsIn(rawURL) {
		if len(s) < 6 {
			continue
		}
		found = append(found, s)
		if meant, err := url.PathUnescape(s); err == nil && meant != s {
			found = append(found, meant)
		}
	}
	return found
}

// secretsIn returns the passwords of a URL as they are written there.
func secretsIn(rawURL string) []string {
	rest, query, _ := strings.Cut(rawURL, "?")
	_, rest, _ = strings.Cut(rest, "//")
	user, password, ok := strings.Cut(rest[:max(strings.LastIndex(rest, "@"), 0)], ":")
	scheme := strings.TrimPrefix(rawURL, "quorum+")
	if !ok && (strings.HasPrefix(scheme, "http") || strings.HasPrefix(scheme, "redis")) {
		password = user // a token or a password without its colon
	}
	secrets := []string{password}
	for _, pair := range strings.Split(query, "&") {
		key, value, _ := strings.Cut(pair, "=")
		if isSecret(key) {
			secrets = append(secrets, value)
		}
		secrets = append(secrets, secretsOfMember(value)...)
	}
	return slices.DeleteFunc(secrets, func(s string) bool { return s == "" })
}

// secretsOfMember returns the passwords of a parameter that has the URL of a member, after its name in shard:, also as they
// are escaped there.
func secretsOfMember(value string) (secrets []string) {
	member, err := url.QueryUnescape(value)
	if err != nil || !strings.Contains(member, "://") {
		return nil
	}
	if name, u, ok := strings.Cut(member, "="); ok && !strings.Contains(name, ":") {
		member = u
	}
	for _, s := range secretsIn(member) {
		secrets = append(secrets, s, url.QueryEscape(s))
	}
	return secrets
}

// isSecret reports whether the values of a query parameter are secrets, and not the names of files with them.
func isSecret(key string) bool {
	key = strings.ToLower(key)
	return !strings.HasSuffix(key, "file") && (strings.Contains(key, "pass") || strings.Contains(key, "secret") ||
		strings.Contains(key, "token") || strings.Contains(key, "auth"))
}

// release is the version of a package, which its build sets.
var release string

// version returns the version of this build: of its package, or as the Go toolchain recorded it.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(unknown)"
	}
	v := cmp.Or(release, info.Main.Version, "(devel)")
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 && v == "(devel)" {
			v += " " + s.Value[:12]
		}
	}
	return v + " " + runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH
}

// text is a string flag that knows whether it was given.
type text struct {
	s   string
	set bool
}

func (t *text) Set(s string) error { t.s, t.set = s, true; return nil }

func (t *text) String() string { return t.s }

func (t *text) Type() string { return "string" }

// flag is the value of a command-line flag.
type flag[T any] struct {
	v     *T
	kind  string // in the help
	parse func(string) (T, error)
}

func (f flag[T]) Set(s string) (err error) {
	v, err := f.parse(s)
	if err == nil {
		*f.v = v
	}
	return err
}

// String formats the default for the help, where 0 stands for none.
func (f flag[T]) String() string {
	if s := fmt.Sprint(*f.v); s != "0" && s != "0s" {
		return s
	}
	return ""
}

func (f flag[T]) Type() string { return f.kind }

// nonEmpty is a flag for a text that is not empty: probably a script's own variable is not set, and the default would
// hide that.
func nonEmpty(s *string) flag[string] {
	return flag[string]{s, "string", func(s string) (string, error) {
		if s == "" {
			return "", errors.New("it is empty; want a value, or no such flag")
		}
		return s, nil
	}}
}

// duration is a flag for a time of 0 or more, or only more.
func duration(d *time.Duration, zero bool) flag[time.Duration] {
	return flag[time.Duration]{d, "duration", func(s string) (time.Duration, error) {
		d, err := time.ParseDuration(s)
		switch {
		case err != nil:
			return 0, errors.New("want a duration such as 500ms, 30s or 5m")
		case d < 0:
			return 0, errors.New("want no negative duration")
		case d == 0 && !zero:
			return 0, errors.New("want more than 0")
		}
		return d, nil
	}}
}

// number is a flag for a whole number from least to most.
func number(n *int, least, most int) flag[int] {
	return flag[int]{n, "int", func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err != nil || n < least || n > most {
			return 0, fmt.Errorf("want a whole number from %d to %d", least, most)
		}
		return n, nil
	}}
}

// choice is a flag for one of a few words.
func choice[T ~string](s *T, words ...string) flag[T] {
	return flag[T]{s, strings.Join(words, "|"), func(s string) (T, error) {
		if !slices.Contains(words, s) {
			return "", fmt.Errorf("want %s", oneOf(words))
		}
		return T(s), nil
	}}
}

// oneOf joins words for a message.
func oneOf(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// pairs is a flag for key=value that may be repeated.
type pairs map[string]string

func (p pairs) Set(s string) error {
	key, value, ok := strings.Cut(s, "=")
	if !ok || key == "" {
		return errors.New("want key=value")
	}
	p[key] = value
	return nil
}

func (p pairs) String() string { return "" }

func (p pairs) Type() string { return "key=value" }
