package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/distlock/distlock"
)

// lookUp finds a command as a shell would, before any lock is taken.
func lookUp(command string) (string, error) {
	path, err := exec.LookPath(command)
	switch {
	case err == nil, errors.Is(err, exec.ErrDot):
		return path, nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return "", exit(exitNotFound, "%s: command not found", command)
	}
	return "", cantRun(command, err)
}

func cantRun(command string, err error) error {
	if e := (*exec.Error)(nil); errors.As(err, &e) {
		err = e.Err
	}
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		err = e.Err
	}
	return exit(exitCantRun, "%s: can't be run: %w", command, err)
}

// stamp is RFC 3339 with milliseconds.
const stamp = "2006-01-02T15:04:05.000Z07:00"

// jobEnv is env, and what the command is told of its locks: a line for each, in the
// order of names.
func jobEnv(env, names []string, leases []*distlock.Lease) []string {
	byName := map[string]*distlock.Lease{}
	for _, l := range leases {
		byName[l.Name()] = l
	}
	var fences, owners []string
	for _, name := range names {
		fences = append(fences, strconv.FormatUint(byName[name].Fence(), 10))
		owners = append(owners, byName[name].Owner())
	}
	return setEnv(env, map[string]string{
		"DISTLOCK_NAME":     strings.Join(names, "\n"),
		"DISTLOCK_FENCE":    strings.Join(fences, "\n"),
		"DISTLOCK_OWNER":    strings.Join(owners, "\n"),
		"DISTLOCK_DEADLINE": firstDeadline(leases).UTC().Format(stamp),
	})
}

// setEnv replaces variables: those of a run around this one must not shadow them.
func setEnv(env []string, vars map[string]string) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(pair string) bool {
		key, _, _ := strings.Cut(pair, "=")
		_, ours := vars[key]
		return ours
	})
	for key, value := range vars {
		env = append(env, fmt.Sprintf("%s=%s", key, value))
	}
	return env
}

// firstDeadline is when the first of the leases ends if none is renewed.
func firstDeadline(leases []*distlock.Lease) time.Time {
	first := leases[0].Deadline()
	for _, l := range leases[1:] {
		if d := l.Deadline(); d.Before(first) {
			first = d
		}
	}
	return first
}
