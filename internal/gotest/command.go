//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// command is one go test command.
type command struct {
	packages []string
	turns    string // what turnEnv is for its packages; "": they need no turn

	cmd    *exec.Cmd
	events io.Reader
}

// start starts it in a folder, with flags of go test.
func (c *command) start(dir string, all []string) error {
	own := len(all) // what follows -args is the tests'
	if i := slices.Index(all, "-args"); i >= 0 {
		own = i
	}
	var flags []string
	if c.turns != "" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		flags = []string{"-p", "4", "-exec", "'" + self + "'"} // one or two run, and the next ones are built
	}
	args := slices.Concat([]string{"test", "-json"}, flags, all[:own], c.packages, all[own:])
	c.cmd = exec.Command("go", args...)
	if c.turns != "" {
		c.cmd.Env = append(os.Environ(), turnEnv+"="+c.turns)
	}
	c.cmd.Dir, c.cmd.Stderr = dir, os.Stderr
	var err error
	if c.events, err = c.cmd.StdoutPipe(); err != nil {
		return err
	}
	return c.cmd.Start()
}

// event is one line of go test -json; see go doc test2json.
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

// read passes on all events, and returns how the command ended.
func (c *command) read(take func(event)) error {
	lines := bufio.NewReader(c.events)
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
	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("go test: %w", err)
	}
	return nil
}

// turnEnv makes this program run another, a test's, while it has the file locked that the variable names. So
// the tests of a command run one after the other, while go test builds the next ones. With a comma behind
// the file's name, a second one may run beside the first while a processor has nothing to do.
const turnEnv = "GOTEST_TURN"

// takeTurn waits for the file, runs the program that the arguments name, and returns its exit code.
func takeTurn(file string, args []string) int {
	code, err := runAlone(file, args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		return 1
	}
	return code
}

func runAlone(file string, args []string) (int, error) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGQUIT, syscall.SIGINT, syscall.SIGTERM)
	file, second := strings.CutSuffix(file, ",")
	turn, err := awaitTurn(file, second, idleTime)
	if err != nil {
		return 0, err
	}
	defer turn.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, turnEnv+"=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s) // it may have ended
		}
	}()
	var failed *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &failed) {
		return 0, err
	}
	if cmd.ProcessState.ExitCode() < 0 {
		return 2, nil // a signal ended it
	}
	return cmd.ProcessState.ExitCode(), nil
}

// awaitTurn returns a file that is locked until it is closed: the one named, or with second another one, if that is free
// and a processor had nothing to do in the last second.
func awaitTurn(file string, second bool, idle func() time.Duration) (turn *os.File, err error) {
	for before := idle(); ; {
		for range 10 {
			if turn, err = tryLock(file); turn != nil || err != nil {
				return turn, err
			}
			time.Sleep(100 * time.Millisecond)
		}
		after := idle()
		if second && after-before > time.Second/2 {
			if turn, err = tryLock(file + ".second"); turn != nil || err != nil {
				return turn, err
			}
		}
		before = after
	}
}

// tryLock returns a file that it has locked; nil if another process has it locked.
func tryLock(file string) (*os.File, error) {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if err == syscall.EWOULDBLOCK || err == syscall.EINTR {
			return nil, nil
		}
		return nil, err
	}
	return f, nil
}

// idleTime returns for how long all processors together have had nothing to do, or only what was started with nice, which gives
// way; 0 where that is not known.
func idleTime() time.Duration {
	text, _ := os.ReadFile("/proc/stat") // Linux has it; see proc_stat(5)
	fields := strings.Fields(string(text))
	if len(fields) < 5 {
		return 0
	}
	ticks, _ := strconv.Atoi(fields[4])
	niced, _ := strconv.Atoi(fields[2])
	return time.Duration(ticks+niced) * (time.Second / 100)
}
