//go:build linux

package soak

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/distlock/distlock/internal/testkit"
)

const mega = 1 << 20

// gauge is a figure that must not grow for ever.
type gauge struct {
	name  string
	slack float64 // growth in half of a run that is nothing; see judge
	back  bool    // at the end it is at most as high as at the start
	read  func() (float64, error)

	values     []float64 // while there was load
	start, end float64
	err        error
}

// sample reads the gauge once more. Without an answer it shows what it showed before.
func (g *gauge) sample() {
	v, err := g.read()
	if err != nil {
		g.err, v = err, g.start
		if n := len(g.values); n > 0 {
			v = g.values[n-1]
		}
	}
	g.values = append(g.values, v)
}

// returned reports whether the gauge is back where it started.
func (g *gauge) returned() bool {
	v, err := g.read()
	g.end, g.err = v, err
	return err == nil && (!g.back || v <= g.start)
}

// count makes a gauge of a number of things that are all gone in the end.
func count(name string, slack float64, read func() (float64, error)) *gauge {
	return &gauge{name: name, slack: slack, back: true, read: read}
}

// size makes a gauge of MB.
func size(name string, slack float64, read func() (float64, error)) *gauge {
	return &gauge{name: name + ", MB", slack: slack, read: func() (float64, error) {
		v, err := read()
		return v / mega, err
	}}
}

// own returns gauges of this process.
func own() []*gauge {
	return []*gauge{
		{name: "heap in use after GC, MB", slack: 2, read: func() (float64, error) { return heap() / mega, nil }},
		count("goroutines", 20, func() (float64, error) { return float64(testkit.Goroutines()), nil }),
		count("open files", 10, func() (float64, error) { return files(os.Getpid()) }),
	}
}

func heap() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// files returns how many files a process has open.
func files(pid int) (float64, error) {
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return float64(len(open)), err
}

// memory returns the bytes of a process that are no file's: caches of files come and go.
func memory(pid int) (float64, error) { return anonymous(strconv.Itoa(pid)) }

// meanMemory returns what a process and its children have on average: PostgreSQL has one for each connection, and
// the number of connections comes and goes.
func meanMemory(pid int) (float64, error) {
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	if err != nil {
		return 0, err
	}
	all := append(strings.Fields(string(children)), strconv.Itoa(pid))
	sum := 0.0
	for _, id := range all {
		bytes, err := anonymous(id)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // it has ended
			return 0, err
		}
		sum += bytes
	}
	return sum / float64(len(all)), nil
}

func anonymous(pid string) (float64, error) {
	status, err := os.Open(filepath.Join("/proc", pid, "status"))
	if err != nil {
		return 0, err
	}
	defer status.Close()
	for lines := bufio.NewScanner(status); lines.Scan(); {
		if kb, found := strings.CutPrefix(lines.Text(), "RssAnon:"); found {
			v, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(kb, "kB")), 64)
			return v * 1024, err
		}
	}
	return 0, nil // it has ended, and its parent does not know yet
}
