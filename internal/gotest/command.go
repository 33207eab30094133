//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
)

// command is one go test command.
type command struct {
	packages []string
	turns    string // what turnEnv is for its packages; "": they need no turn

	cmd    *exec.Cmd
	events io.Reader
}

// start starts it in a folder, with flags of go test.
func (l *command) start(dir string, all []string) error {
	own := len(all) // what follows -args is the tests'
	if i := slices.Index(all, "-args"); i >= 0 {
		own = i
	}
	var flags []string
	if l.turns != "" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		flags = []string{"-p", "4", "-exec", "'" + self + "'"} // one or two run, and the next ones are built
	}
	args := slices.Concat([]string{"test", "-json"}, flags, all[:own], l.packages, all[own:])
	l.cmd = exec.Command("go", args...)
	if l.turns != "" {
		l.cmd.Env = append(os.Environ(), turnEnv+"="+l.turns)
	}
	l.cmd.Dir, l.cmd.Stderr = dir, os.Stderr
	var err error
	if l.events, err = l.cmd.StdoutPipe(); err != nil {
		return err
	}
	return l.cmd.Start()
}

// event is one line of go test -json; see go doc test2json.
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

// read passes on all events, and returns how the command ended.
func (l *command) read(take func(event)) error {
	lines := bufio.NewReader(l.events)
	for {
		line, err := lines.ReadBytes('\n')
		var e event
		if len(line) > 0 && json.Unmarshal(line, &e) != nil {
			e = event{Action: "output", Output: string(line)}
		}
		take(e)
		if err != nil {
			break
		}
	}
	if err := l.cmd.Wait(); err != nil {
		return fmt.Errorf("go test: %w", err)
	}
	return nil
}
