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

// lane is one go test command.
type lane struct {
	packages []string
	flags    []string // beside those that were asked for

	cmd    *exec.Cmd
	events io.Reader
}

func (l *lane) start(o options) error {
	own := len(o.flags) // what follows -args is the tests'
	if i := slices.Index(o.flags, "-args"); i >= 0 {
		own = i
	}
	args := slices.Concat([]string{"test", "-json"}, l.flags, o.flags[:own], l.packages, o.flags[own:])
	l.cmd = exec.Command("go", args...)
	l.cmd.Dir, l.cmd.Stderr = o.dir, os.Stderr
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

// read takes in all events, and returns how the command ended.
func (l *lane) read(r *report) error {
	lines := bufio.NewReader(l.events)
	for {
		line, err := lines.ReadBytes('\n')
		var e event
		if len(line) > 0 && json.Unmarshal(line, &e) != nil {
			e = event{Action: "output", Output: string(line)}
		}
		r.take(e)
		if err != nil {
			break
		}
	}
	if err := l.cmd.Wait(); err != nil {
		return fmt.Errorf("go test: %w", err)
	}
	return nil
}
