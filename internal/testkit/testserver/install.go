package testserver

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// program is an executable that a coordinator needs.
type program struct {
	name   string                 // as found in PATH
	env    string                 // environment variable that overrides it
	dirs   []string               // where else to look
	debian string                 // package that holds it
	works  func(path string) bool // whether it is the right one; nil: any is
}

// find returns the path of the program.
func (p *program) find() (string, error) {
	if path := os.Getenv(p.env); path != "" {
		_, err := exec.LookPath(path)
		return path, err
	}
	if path := p.look(); path != "" {
		return path, nil
	}
	return "", fmt.Errorf("%s is neither in PATH nor named by %s; run make servers, or install it (Debian: package %s)", p.name, p.env, p.debian)
}

func (p *program) look() string {
	names := []string{p.name}
	for _, dir := range p.dirs {
		names = append(names, filepath.Join(dir, p.name))
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil && (p.works == nil || p.works(path)) {
			return path
		}
	}
	return ""
}

// aptInstall installs packages without starting their services.
func aptInstall(names []string) error {
	defer forbidServices()()
	install := append([]string{"install", "-y", "--no-install-recommends"}, names...)
	if err := apt(install...); err == nil {
		return nil
	}
	// A fresh machine has no package lists yet.
	if err := apt("update"); err != nil {
		return err
	}
	return apt(install...)
}

func apt(args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-q", "-o", "DPkg::Lock::Timeout=300"}, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("apt-get %s: %w: %s", strings.Join(args, " "), err, tail(string(out), 500))
	}
	return nil
}

// forbidServices keeps a package from starting its service while it is installed,
// unless the machine has a policy of its own. The result undoes it.
func forbidServices() (undo func()) {
	const policy = "/usr/sbin/policy-rc.d"
	f, err := os.OpenFile(policy, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return func() {}
	}
	f.WriteString("#!/bin/sh\nexit 101\n")
	f.Close()
	return func() { os.Remove(policy) }
}

func tail(s string, n int) string {
	s = strings.TrimSpace(s)
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}
