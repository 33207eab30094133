package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/distlock/distlock"
	_ "github.com/distlock/distlock/backend/httplock" // every scheme of --url but rareSchemes
	_ "github.com/distlock/distlock/backend/kubelock"
	_ "github.com/distlock/distlock/backend/memlock"
	_ "github.com/distlock/distlock/backend/mysqllock"
	_ "github.com/distlock/distlock/backend/pglock"
	_ "github.com/distlock/distlock/backend/quorum"
	_ "github.com/distlock/distlock/backend/redislock"
	_ "github.com/distlock/distlock/backend/shard"
	_ "github.com/distlock/distlock/backend/sqlitelock"
	_ "github.com/distlock/distlock/backend/zklock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/opening"
)

// openTimeout bounds how long a server may take to be reached.
const openTimeout = 10 * time.Second

// backendURL returns the URL of the server: from --local, --url, the variable or a config file, in
// this order. Without any of them it returns the URL of a local file, and warns that no other host
// sees it.
func (a *app) backendURL() (string, error) {
	switch {
	case a.local && a.url.set:
		return "", errLocalURL()
	case a.local:
		return localURL()
	}
	u, err := a.givenURL()
	given := u != ""
	if !given && err == nil {
		u, err = configuredURL()
	}
	if u != "" || err != nil {
		a.secrets = append(a.secrets, passwordsOf(u)...)
		if err == nil {
			u, err = a.absolute(u, given)
		}
		return u, err
	}
	if a.everywhere {
		return "", usage("no --url, %s or config file is given, so each host would run the command; want a server that all of them reach, in /etc/distlock.url for instance, or --local for this host alone", urlVariable)
	}
	if u, err = localURL(); err == nil {
		a.warnf("no --url, %s or config file is given, so only this user on this host sees the locks (%s); use --local to confirm that", urlVariable, u)
	}
	return u, err
}

// absolute returns a URL that means the same file in every directory: two programs that lock different files do not exclude
// each other. Where a relative path is sure to be a mistake, it is an error, and else the file is named.
func (a *app) absolute(rawURL string, given bool) (string, error) {
	path, ok := strings.CutPrefix(rawURL, "sqlite:")
	path, query, _ := strings.Cut(path, "?")
	if !ok || path == "" || strings.HasPrefix(path, "/") || runtime.GOOS == "windows" {
		return rawURL, nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", usage("%s depends on the working directory, which is not known: %w; want sqlite:/path/to/locks.db", rawURL, err)
	}
	u := (&url.URL{Scheme: "sqlite", Path: dir}).JoinPath(path)
	u.RawQuery = query
	if a.everywhere || !given {
		return "", usage("%s is another file in each working directory; want its full path, as here %s", rawURL, u)
	}
	a.warnf("%s is another file in each working directory; here it is %s", rawURL, u)
	return u.String(), nil
}

func errLocalURL() error { return usage("--local and --url exclude each other; want one of them") }

// givenURL returns the URL from --url or the variable, or "". An empty --url or variable is an
// error: probably a script's own variable is not set, and the default would be a lock that no
// other host sees.
func (a *app) givenURL() (string, error) {
	fromEnv, isSet := os.LookupEnv(urlVariable)
	switch {
	case a.url.set && a.url.s == "":
		return "", usage("--url is empty; want a URL such as redis://localhost:6379, or no --url")
	case a.url.set:
		return a.url.s, nil
	case isSet && fromEnv == "":
		return "", usage("%s is set but empty; want a URL such as redis://localhost:6379, or unset it", urlVariable)
	case isSet:
		return fromEnv, nil
	}
	return "", nil
}

// localURL returns the URL of this user's own file on this host.
func localURL() (string, error) {
	dir, err := stateDir()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", exit(exitUnreachable, "no directory for the locks: %w; give --url sqlite:/path/to/locks.db", err)
	}
	return (&url.URL{Scheme: "sqlite", Path: filepath.ToSlash(filepath.Join(dir, "locks.db"))}).String(), nil
}

// stateDir returns the directory of the local file. It ignores a relative XDG_STATE_HOME, as the
// XDG specification demands.
func stateDir() (string, error) {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "distlock"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil || !filepath.IsAbs(home) {
		return "", usage("no server: neither --url nor %s is given, and neither XDG_STATE_HOME nor HOME is set; give --url sqlite:/path/to/locks.db or another URL", urlVariable)
	}
	return filepath.Join(home, ".local", "state", "distlock"), nil
}

// openBackend connects to the server.
func (a *app) openBackend(ctx context.Context) (driver.Backend, error) {
	u, err := a.backendURL()
	if err != nil {
		return nil, err
	}
	a.location = u
	return openURL(ctx, u)
}

func openURL(ctx context.Context, rawURL string) (driver.Backend, error) {
	return openBy(ctx, opening.Open, rawURL)
}

// openBy is openURL by opening.Open, or by driver.Open, which does not ask a server what it is, for another try.
func openBy(ctx context.Context, open func(context.Context, string) (driver.Backend, error), rawURL string) (driver.Backend, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	b, err := open(ctx, rawURL)
	if err != nil {
		kind := distlock.ErrUnavailable
		if driver.Final(err) {
			kind = distlock.ErrInvalid
		}
		return nil, &distlock.Error{Op: "open", Name: driver.Redact(rawURL), Kind: kind, Err: err}
	}
	return b, nil
}

// newClient makes a client on b. It closes b if that fails.
func newClient(b driver.Backend, opts *distlock.Options) (*distlock.Client, error) {
	c, err := distlock.New(b, opts)
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return c, nil
}

// withClient calls f with a client with default options, for commands that hold no locks. The context
// ends with SIGINT and SIGTERM.
func (a *app) withClient(f func(ctx context.Context, c *distlock.Client) error) error {
	ctx, cancel := interruptible()
	defer cancel()
	c, err := a.client(ctx)
	if err == nil {
		err = f(ctx, c)
		if closing := c.Close(); closing != nil {
			a.warn(closing) // the command itself may have succeeded
		}
	}
	return unlessCaught(ctx, err)
}

// client connects with default options.
func (a *app) client(ctx context.Context) (*distlock.Client, error) {
	b, err := a.openBackend(ctx)
	if err != nil {
		return nil, err
	}
	return newClient(b, nil)
}

// systemFile is the config file for all users of the host.
var systemFile = "/etc/distlock.url"

// configuredURL returns the URL in the first config file that exists, the user's before
// the host's, or "". A file that other users can write, or in which they can read a password, is
// an error.
func configuredURL() (string, error) {
	for _, path := range configFiles() {
		u, err := readURL(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", usage("%s: %w", path, err)
		}
		return u, nil
	}
	return "", nil
}

// configFiles returns the possible paths of a config file.
func configFiles() []string {
	var files []string
	if dir := os.Getenv("CREDENTIALS_DIRECTORY"); filepath.IsAbs(dir) { // of a service of systemd, by LoadCredential
		files = append(files, filepath.Join(dir, "distlock.url"))
	}
	if dir := os.Getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		files = append(files, filepath.Join(dir, "distlock", "url"))
	} else if home, err := os.UserHomeDir(); err == nil && filepath.IsAbs(home) {
		files = append(files, filepath.Join(home, ".config", "distlock", "url"))
	}
	return append(files, systemFile)
}

// readURL returns the only line of a config file that is neither empty nor a comment.
func readURL(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	const most = 64 << 10
	if !info.Mode().IsRegular() || info.Size() > most {
		return "", fmt.Errorf("want a small file with one line, a URL such as redis://localhost:6379")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	if len(lines) != 1 {
		return "", fmt.Errorf("got %d lines; want one, a URL such as redis://localhost:6379 (lines that begin with # are comments)", len(lines))
	}
	return lines[0], checkMode(info.Mode().Perm(), lines[0])
}

// checkMode rejects permissions that let other users choose the server or read a password.
func checkMode(mode fs.FileMode, url string) error {
	switch {
	case runtime.GOOS == "windows":
		return nil
	case mode&0o022 != 0:
		return fmt.Errorf("mode %04o lets other users write to it; want chmod go-w", mode)
	case mode&0o004 != 0 && len(secretsIn(url)) > 0:
		return fmt.Errorf("mode %04o lets all users read the password in it; want chmod o-r", mode)
	}
	return nil
}

// Bounds of a completion. The user waits for it with a finger on the key.
const (
	completionTimeout = 2 * time.Second
	maxCompletions    = 500
)

// completeNames returns a function that completes the first most arguments by names of locks that are
// held or waited for; -1 means all arguments before --.
func (a *app) completeNames(most int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, start string) ([]cobra.Completion, cobra.ShellCompDirective) {
		switch {
		case slices.Contains(a.args[:max(len(a.args)-1, 0)], "--"):
			return nil, cobra.ShellCompDirectiveDefault // the command to run, and its files
		case most >= 0 && len(args) >= most:
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.namesOf(start), cobra.ShellCompDirectiveNoFileComp
	}
}

// namesOf returns names of locks that begin with start. Without an answer in time it returns what it has.
func (a *app) namesOf(start string) (names []string) {
	ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
	defer cancel()
	b, err := a.openBackend(ctx)
	if err != nil {
		return nil
	}
	defer b.Close()
	if lister, ok := b.(driver.Inspector); ok {
		_ = lister.List(ctx, start, func(name string) bool {
			if !strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
				names = append(names, name) // a script takes the others for several lines
			}
			return len(names) < maxCompletions
		})
	}
	slices.Sort(names)
	return names
}

// completeFlag completes the values of a flag.
func completeFlag(cmd *cobra.Command, flag string, words ...string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // there is no such flag, which every start shows
	}
}
