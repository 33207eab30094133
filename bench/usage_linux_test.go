package bench

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// cpuOf returns the processor time that a process has used.
func cpuOf(pid int) (time.Duration, error) {
	const scheduled = 2
	var t unix.Timespec
	err := unix.ClockGettime(int32(^pid<<3|scheduled), &t)
	return time.Duration(t.Nano()), err
}

// cpuOfFamily returns the processor time of a process and of its children, including those that have
// ended.
func cpuOfFamily(pid int) (time.Duration, error) {
	sum, err := cpuOf(pid)
	if err != nil {
		return 0, err
	}
	f, err := statOf(pid)
	if err != nil {
		return 0, err
	}
	for _, ticks := range f[13:15] { // of children that have ended
		n, err := strconv.Atoi(string(ticks))
		if err != nil {
			return 0, fmt.Errorf("the state of process %d says %q: %w", pid, ticks, err)
		}
		sum += time.Duration(n) * (time.Second / 100)
	}
	paths, err := filepath.Glob("/proc/[0-9]*")
	for _, path := range paths {
		child, _ := strconv.Atoi(filepath.Base(path))
		if f, err := statOf(child); err == nil && string(f[1]) == strconv.Itoa(pid) {
			used, _ := cpuOf(child) // zero if it has ended meanwhile
			sum += used
		}
	}
	return sum, err
}

// statOf returns the fields of a process's state from the third on. They do not contain its name.
func statOf(pid int) ([][]byte, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(f) < 15 {
		return nil, errors.New("a process's state is cut short")
	}
	return f, nil
}
