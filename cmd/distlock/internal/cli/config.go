package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// systemFile is the config file for all users of the host.
var systemFile = "/etc/distlock.url"

// configuredURL returns the URL in the first config file that exists, the user's before
// the host's, and "" if there is none. A file that others could have written, or in which
// others could read a password, is an error.
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

// configFiles lists where a config file may be.
func configFiles() []string {
	var files []string
	if dir := os.Getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		files = append(files, filepath.Join(dir, "distlock", "url"))
	} else if home, err := os.UserHomeDir(); err == nil && filepath.IsAbs(home) {
		files = append(files, filepath.Join(home, ".config", "distlock", "url"))
	}
	return append(files, systemFile)
}

// readURL returns the only line of a config file that is neither empty nor a comment.
func readURL(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
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

// checkMode refuses permissions that let other users choose where the locks are kept, or
// read a password.
func checkMode(mode fs.FileMode, url string) error {
	switch {
	case runtime.GOOS == "windows":
		return nil
	case mode&0o022 != 0:
		return fmt.Errorf("mode %04o lets other users write to it; want chmod go-w", mode)
	case mode&0o004 != 0 && len(passwordsOf(url)) > 0:
		return fmt.Errorf("mode %04o lets all users read the password in it; want chmod o-r", mode)
	}
	return nil
}
