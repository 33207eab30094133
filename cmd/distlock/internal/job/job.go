// Package job runs a command under a lock, and ends it before another client can have the lock.
//
// A command that shares a terminal with its caller stays in the caller's process group, as under flock or timeout
// --foreground: the terminal sends its keys to both, and this package forwards all other signals to the command. Without a
// terminal, as under cron or a service manager, the command gets a group of its own, which receives each signal.
package job

import (
	"os"
	"slices"
	"syscall"
	"time"
)

// firstReport is how long the wait for processes that the command has left may last without a message.
const firstReport = 5 * time.Second

// hangUpTime is for how long after SIGHUP an end of the command is taken to be caused by it.
const hangUpTime = 10 * time.Minute

// run is a command while it runs. The process is what a system knows of it:
//
//	ended    receives its status, once
//	forward  sends it a signal that this process received, unless a key of the terminal sent that to both
//	stop     asks it to end
//	end      ends it and all that it has started
//	resume   continues it if it was stopped
//	over     is called when it has ended, by itself or after a signal, which what it has left gets, too
//	typed    reports whether the terminal sent a signal
//	left     reports whether processes are alive that it has left
type run struct {
	*Command
	*process
	Result
	until  time.Time // the deadline when notice was given
	hungUp time.Time // when SIGHUP was forwarded
	sent   os.Signal // the last signal that was forwarded
}

// Run runs the command until it has ended. An error says that it could not be started.
func (c *Command) Run() (Result, error) {
	p, err := c.start()
	if err != nil {
		return Result{}, err
	}
	r := &run{Command: c, process: p}
	r.finish(r.watch())
	return r.Result, nil
}

// finish sets the result after the command has ended, and waits for what it has left if a signal may have ended it.
func (r *run) finish(end status) {
	for len(r.Signals) > 0 { // the one that ended the command may come with its end
		r.signalled(<-r.Signals)
	}
	told := r.sent
	if told != end.by && !ends(told) {
		told = nil
	}
	r.over(told)
	r.Code, r.Interrupted = end.code, end.by == os.Interrupt
	if r.Told || r.GaveWay || r.Lost || end.by != nil && (end.by == r.sent || r.typed(end.by)) || time.Since(r.hungUp) < hangUpTime {
		r.clearUp()
	}
}

// watch handles all events until the command has ended.
func (r *run) watch() status {
	lost := r.Lock.Context().Done()
	deadline := time.NewTimer(r.untilNotice())
	defer deadline.Stop()
	for {
		select {
		case end := <-r.ended:
			return end
		case sig := <-r.Signals:
			r.signalled(sig)
		case <-deadline.C:
			if d := r.untilNotice(); d > 0 {
				deadline.Reset(d)
			} else {
				r.giveNotice()
			}
		case <-r.Asked:
			r.giveWay()
		case <-lost:
			lost = nil
			r.lost()
		}
	}
}

// untilNotice returns the time until the command must be stopped.
func (r *run) untilNotice() time.Duration {
	if r.Notice == 0 {
		return 1<<63 - 1
	}
	return time.Until(r.Lock.Deadline()) - r.Notice
}

// giveWay asks the command to stop. The lock is safe, so there is no hurry.
func (r *run) giveWay() {
	if r.Lost {
		return
	}
	r.GaveWay = true
	r.stop()
	r.Warnf("the lock was asked for; stopping %s", r.Args[0])
}

// giveNotice stops the command while the lock is still held. If it is too late for that, because this
// process itself was stopped, lost follows.
func (r *run) giveNotice() {
	left := time.Until(r.Lock.Deadline())
	if r.Lost || left <= 0 {
		return
	}
	r.Lost, r.until = true, time.Now().Add(left)
	if r.OnLoss == Kill {
		r.end()
		r.Warnf("the lock can't be renewed; killing %s", r.Args[0])
		return
	}
	r.stop()
	r.Warnf("the lock can't be renewed; stopping %s, which has %v left", r.Args[0], left.Round(10*time.Millisecond))
}

// lost ends the command: another client may have the lock now.
func (r *run) lost() {
	r.Lost = true
	if r.OnLoss == Ignore {
		r.Warnf("%s; %s continues without the lock", r.Lock.Lost(), r.Args[0])
		return
	}
	r.end()
	r.Warnf("%s; killing %s", r.Lock.Lost(), r.Args[0])
}

// signalled handles a signal that this process received.
func (r *run) signalled(sig os.Signal) {
	switch sig {
	case syscall.SIGPIPE: // a closed pipe only drops a message
		return
	case syscall.SIGHUP: // programs that run for long read their configuration again
		r.hungUp = time.Now()
	}
	if r.OnLoss == Ignore || r.Lock.Lost() == "" || ends(sig) { // otherwise SIGCONT would continue what is to be killed
		r.forward(sig)
	}
	r.sent = sig
	if ends(sig) {
		r.Told = true
		r.resume() // a stopped command ends only then
	}
}

// ends reports whether a signal of the user asks the command to end.
func ends(sig os.Signal) bool {
	return slices.Contains([]os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM}, sig)
}

// clearUp waits for processes that outlive the command after a signal of this process, which may have
// ended the command first. It ends them when the lock is lost, or was to be lost when notice was given: the server may be
// back since. Another signal to end stops the wait.
func (r *run) clearUp() {
	var end <-chan time.Time
	switch {
	case r.Lost && r.OnLoss != Ignore:
		end = time.After(time.Until(r.until))
	case r.Lost:
		return
	}
	lost, slow := r.Lock.Context().Done(), time.After(firstReport)
	for r.left() {
		select {
		case <-lost:
			if r.Lost {
				r.end()
			} else {
				r.lost()
			}
			return
		case <-end:
			r.end()
			return
		case sig := <-r.Signals:
			if r.signalled(sig); end == nil && ends(sig) {
				return
			}
		case <-slow:
			r.Warnf("waiting for processes that %s has left; another signal ends the wait", r.Args[0])
		case <-time.After(5 * time.Millisecond):
		}
	}
}
