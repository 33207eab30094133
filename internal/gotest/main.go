//go:build unix

// Gotest runs go test, prints what failed, and ends a test that hangs: it is named, with all
// goroutines of its process, a minute after it last gave a sign of life.
//
//	go run ./internal/gotest [-hang 1m] -- [arguments of go test]
//
// The minute is stretched while the machine has more to do than it has processors.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

func main() {
	hang := flag.Duration("hang", time.Minute, "how long a test may go without a sign of life")
	dir := flag.String("C", ".", "the folder to run in")
	flag.Parse()
	if !run(*dir, *hang, flag.Args(), os.Stdout) {
		os.Exit(1)
	}
}

// run runs go test and reports whether all is well.
func run(dir string, hang time.Duration, args []string, out io.Writer) bool {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	events, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		return false
	}
	r := newReport(out)
	stop := make(chan struct{})
	go r.watch(cmd.Process.Pid, hang, stop)
	r.read(events)
	close(stop)
	err = cmd.Wait()
	r.conclude()
	return err == nil
}

// event is one line of go test -json; see go doc test2json.
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

// read takes in all events.
func (r *report) read(events io.Reader) {
	lines := bufio.NewReader(events)
	for {
		line, err := lines.ReadBytes('\n')
		var e event
		if len(line) > 0 && json.Unmarshal(line, &e) != nil {
			e = event{Action: "output", Output: string(line)}
		}
		r.take(e)
		if err != nil {
			return
		}
	}
}
