package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/distlock/distlock/driver"
)

// wholeCommand is this command with all backends.
const wholeCommand = "distlock-all"

// rareSchemes are the schemes of the URLs that only wholeCommand knows: the clients of these backends take so long to start that
// nobody else should wait for them. That of etcd takes as long as half of all the rest, and that of S3 a tenth.
var rareSchemes = []string{"etcd", "etcds", "s3"}

// replacedVariable is the environment variable that tells wholeCommand the version of the command that it has replaced.
const replacedVariable = "DISTLOCK_REPLACED"

// becomeWhole replaces this program by wholeCommand if a URL may have a rare scheme, also one of a quorum's or a shard's member.
// It is the first thing that happens, so that nothing is lost by it: no signal is caught and nothing is open. A program
// that has these backends stays as it is.
func becomeWhole(args []string) error {
	replaced := os.Getenv(replacedVariable)
	os.Unsetenv(replacedVariable)
	if slices.Contains(driver.Schemes(), rareSchemes[0]) {
		if replaced != "" && replaced != version() {
			return usage("%s is of version %s, and the distlock that has become it of %s; want the same of both", wholeCommand, version(), replaced)
		}
		return nil
	}
	if dash := slices.Index(args, "--"); dash >= 0 {
		args = args[:dash] // the arguments of a job come after it
	}
	err := errNotInstalled
	switch {
	case replaced != "":
		err = errItself
	case slices.ContainsFunc(slices.Concat(args, configuredURLs()), isRare):
		err = replaceBy(wholeCommand)
	}
	for _, scheme := range rareSchemes {
		driver.Register(scheme, func(context.Context, *url.URL) (driver.Backend, error) {
			return nil, fmt.Errorf("%w: for %s this command becomes another one: %w; want: go install github.com/distlock/distlock/cmd/distlock/%s@latest, or make install in the clone",
				driver.ErrInvalid, scheme, err, wholeCommand)
		})
	}
	return nil
}

var (
	errNotInstalled = errors.New(wholeCommand + " is neither beside it nor on the PATH")
	errItself       = errors.New("what is called " + wholeCommand + " is this one again")
)

// configuredURLs returns the URLs that this command may use beside those of its arguments.
func configuredURLs() []string {
	file, _ := configuredURL() // whoever uses it reports the error
	return []string{os.Getenv(urlVariable), file}
}

// isRare reports whether a text may be a URL with a rare scheme, or have one after a =, however it is escaped there.
func isRare(text string) bool {
	for {
		lower := "=" + strings.ToLower(text)
		if slices.ContainsFunc(rareSchemes, func(scheme string) bool { return strings.Contains(lower, "="+scheme+":") }) {
			return true
		}
		plain, err := url.QueryUnescape(text)
		if err != nil || plain == text {
			return false
		}
		text = plain
	}
}

// replaceBy goes on as another program: one beside this one, or on the PATH. It returns only if it can't.
func replaceBy(program string) error {
	path, err := exec.LookPath(program)
	if self, unknown := os.Executable(); unknown == nil {
		if resolved, failed := filepath.EvalSymlinks(self); failed == nil {
			self = resolved
		}
		if beside, missing := exec.LookPath(filepath.Join(filepath.Dir(self), program)); missing == nil {
			path, err = beside, nil
		}
	}
	if errors.Is(err, exec.ErrNotFound) {
		return errNotInstalled
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("%s: %w", path, syscall.Exec(path, os.Args, append(os.Environ(), replacedVariable+"="+version())))
}
