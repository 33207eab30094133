package server

import "time"

// workerTime is how long a goroutine without work lasts.
const workerTime = 10 * time.Second

// workers are goroutines that have made a call, and so have a stack that is large enough for the next one. To let it grow
// took a sixth of the server's time.
type workers struct {
	tasks chan func()
	ended <-chan struct{} // none is kept for later then
}

// run runs a task.
func (w workers) run(task func()) {
	select {
	case w.tasks <- task:
	default:
		go w.work(task)
	}
}

func (w workers) work(task func()) {
	idle := time.NewTimer(workerTime)
	defer idle.Stop()
	for {
		task()
		idle.Reset(workerTime)
		select {
		case task = <-w.tasks:
		case <-idle.C:
			return
		case <-w.ended:
			return
		}
	}
}
