//go:build !unix

package cli

import (
	"net"
	"os"
	"time"

	"github.com/distlock/distlock"
)

// job is a command that runs under locks. This system has no process groups and no SIGTERM, so a command
// that has to stop is killed.
type job struct {
	path      string
	argv, env []string
	onLoss    string
	warning   time.Duration
	lease     *distlock.MultiLease
	asked     <-chan struct{}
	signals   *signals
	warnf     func(format string, args ...any) // must not block: it would delay the command's end
	flush     func()

	losing, gaveWay, toEnd, interrupted, inFront bool
}

func (j *job) run() (int, error) {
	p, err := os.StartProcess(j.path, j.argv, &os.ProcAttr{Env: j.env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		return 0, cantRun(j.argv[0], err)
	}
	ended := make(chan error)
	var state *os.ProcessState
	go func() {
		state, err = p.Wait()
		ended <- err
	}()
	if err := j.watch(p, ended); err != nil {
		return 0, err
	}
	return state.ExitCode(), nil
}

// watch handles all events until the command has ended. Its console sends it Ctrl-C.
func (j *job) watch(p *os.Process, ended <-chan error) error {
	lost := j.lease.Context().Done()
	for {
		select {
		case err := <-ended:
			return err
		case <-j.signals.ch:
			j.toEnd = true
		case <-j.asked:
			j.gaveWay = true
			_ = p.Kill()
			j.warnf("the lock was asked for; killing %s", j.argv[0])
		case <-lost:
			lost = nil
			j.losing = true
			if j.onLoss == lossIgnore {
				continue
			}
			_ = p.Kill()
			j.warnf("%s; killing %s", reason(j.lease.Err()), j.argv[0])
		}
	}
}

// dieOfInterrupt does nothing: no program here notices what ended another one.
func dieOfInterrupt(bool) {}

// listenPrivately makes a socket. The permissions of its folder say who can reach it.
func listenPrivately(path string) (net.Listener, error) { return net.Listen("unix", path) }
