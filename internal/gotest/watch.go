//go:build unix

package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// watch ends the processes of tests that hang, until stop is closed.
func (r *report) watch(lanes []*lane, hang time.Duration, stop <-chan struct{}) {
	tick := time.NewTicker(min(hang/4, 5*time.Second))
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		for _, name := range r.hanging(time.Duration(float64(hang) * slowdown())) {
			quit(lanes, name)
		}
	}
}

// slowdown is by how much more there is to do than the machine can do at once; at least 1.
func slowdown() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 1
	}
	load, err := strconv.ParseFloat(strings.Fields(string(text))[0], 64)
	if err != nil {
		return 1
	}
	return max(1, load/float64(runtime.NumCPU()))
}

// quit makes the test process of a package print its goroutines and end. Where processes
// can't be listed go test is ended instead.
func quit(lanes []*lane, name string) {
	found := false
	programs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range programs {
		text, err := os.ReadFile(file)
		program, _, _ := strings.Cut(string(text), "\x00")
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err == nil && path.Base(program) == path.Base(name)+".test" && startedBy(lanes, parent(pid)) {
			found = true
			_ = syscall.Kill(pid, syscall.SIGQUIT) // it may have ended by itself
		}
	}
	if !found {
		fmt.Fprintf(os.Stderr, "gotest: the process of %s is not found; ending all\n", name)
		for _, l := range lanes {
			_ = l.cmd.Process.Signal(syscall.SIGINT)
		}
	}
}

func startedBy(lanes []*lane, pid int) bool {
	return slices.ContainsFunc(lanes, func(l *lane) bool { return l.cmd.Process.Pid == pid })
}

// parent returns the process that started another; 0 if that is not known.
func parent(pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name, in parentheses, may contain anything.
	_, rest, _ := strings.Cut(string(text[strings.LastIndexByte(string(text), ')')+1:]), " ")
	fields := strings.Fields(rest)
	if len(fields) < 2 {
		return 0
	}
	ppid, _ := strconv.Atoi(fields[1])
	return ppid
}
