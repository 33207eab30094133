//go:build unix

// Gotest runs go test, prints what failed and which tests took longest, and ends a test that
// hangs: it is named, with all goroutines of its process, a minute after it last gave a sign
// of life.
//
//	go run ./internal/gotest [-hang 1m] [-serial "PACKAGES"] [-slowest N] [PACKAGES] [-- FLAGS]
//
// FLAGS are the flags of go test. PACKAGES are ./... if none are given. The packages named by
// -serial run one after the other. Beside them the rest runs one after the other, and two at a time while a processor
// has nothing to do. The next packages are built meanwhile.
//
// The minute is stretched while the machine has more to do than it has processors.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/distlock/distlock/internal/wait"
)

// options are the options of the command line.
type options struct {
	dir     string
	hang    time.Duration // how long a test may go without a sign of life
	serial  []string      // packages of which only one runs at a time
	slowest int           // how many of the slowest tests are listed
	pattern []string      // the packages
	flags   []string      // of go test
}

func main() {
	if file := os.Getenv(turnEnv); file != "" {
		os.Exit(takeTurn(file, os.Args[1:]))
	}
	var o options
	serial := flag.String("serial", "", "packages that run one after the other, beside the rest")
	flag.DurationVar(&o.hang, "hang", time.Minute, "how long a test may go without a sign of life")
	flag.IntVar(&o.slowest, "slowest", 0, "how many of the slowest tests are listed")
	flag.StringVar(&o.dir, "C", ".", "the folder to run in")
	args, flags := os.Args[1:], []string(nil)
	if i := slices.Index(args, "--"); i >= 0 {
		args, flags = args[:i], args[i+1:]
	}
	_ = flag.CommandLine.Parse(args) // it exits
	o.serial, o.pattern, o.flags = strings.Fields(*serial), flag.Args(), flags
	if err := run(o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		os.Exit(1)
	}
}

// run runs the tests. It fails if one of them does.
func run(o options, out io.Writer) error {
	if len(o.pattern) == 0 {
		o.pattern = []string{"./..."}
	}
	all, err := o.list(o.pattern)
	if err != nil {
		return err
	}
	commands := []*command{{packages: all}}
	if len(o.serial) > 0 {
		serial, err := o.list(o.serial)
		if err != nil {
			return err
		}
		turns, err := os.MkdirTemp("", "gotest")
		if err != nil {
			return err
		}
		defer os.RemoveAll(turns)
		one := &command{turns: turns + "/serial", packages: slices.DeleteFunc(slices.Clone(all), func(p string) bool { return !slices.Contains(serial, p) })}
		rest := &command{turns: turns + "/rest,", packages: slices.DeleteFunc(all, func(p string) bool { return slices.Contains(serial, p) })}
		commands = slices.DeleteFunc([]*command{one, rest}, func(l *command) bool { return len(l.packages) == 0 })
	}
	r := newReport(out)
	stop := make(chan struct{})
	for _, l := range commands {
		if failed := l.start(o.dir, o.flags); failed != nil {
			return failed
		}
	}
	go r.watch(commands, o.hang, stop)
	errs := make([]error, len(commands))
	var reading wait.Group
	for i, l := range commands {
		reading.Go(func() { errs[i] = l.read(r.take) })
	}
	reading.Wait()
	close(stop)
	r.conclude(o.slowest)
	return errors.Join(errs...)
}

// list returns the import paths of packages.
func (o options) list(pattern []string) ([]string, error) {
	cmd := exec.Command("go", append([]string{"list"}, pattern...)...)
	cmd.Dir, cmd.Stderr = o.dir, os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w", strings.Join(pattern, " "), err)
	}
	return strings.Fields(string(text)), nil
}
