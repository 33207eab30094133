//go:build unix

package bench

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// cpu returns the processor time that this process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// memory is the memory usage of this process.
type memory struct {
	Heap int64 // live objects and stacks
	RSS  int64 // 0 if it is unknown
}

func memoryInUse() memory {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	m := memory{Heap: int64(s.HeapAlloc + s.StackInuse)}
	if statm, err := os.ReadFile("/proc/self/statm"); err == nil {
		if f := bytes.Fields(statm); len(f) > 1 {
			pages, _ := strconv.ParseInt(string(f[1]), 10, 64)
			m.RSS = pages * int64(os.Getpagesize())
		}
	}
	return m
}
