//go:build !unix

package job

import "os"

// process is the command's. This system has no process groups and no SIGTERM, so a command
// that has to stop is killed. Its console sends it Ctrl-C.
type process struct {
	*os.Process
	ended chan status
}

func (c *Command) start() (*process, error) {
	p, err := os.StartProcess(c.Path, c.Args, &os.ProcAttr{Env: c.Env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		return nil, err
	}
	ended := make(chan status, 1)
	go func() {
		state, err := p.Wait()
		if err != nil {
			c.Warnf("%s: can't tell how it ended: %w", c.Args[0], err)
			ended <- status{code: 1}
			return
		}
		ended <- status{code: state.ExitCode()}
	}()
	return &process{p, ended}, nil
}

func (p *process) forward(os.Signal)    {}
func (p *process) resume()              {}
func (p *process) stop()                { _ = p.Kill() }
func (p *process) end()                 { _ = p.Kill() }
func (p *process) over(os.Signal)       {}
func (p *process) typed(os.Signal) bool { return false }
func (p *process) left() bool           { return false }

// DieOfInterrupt does nothing: no program here notices what ended another one.
func DieOfInterrupt() {}
