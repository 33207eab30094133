package server

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/distlock/distlock/internal/httpwire"
)

// A request may have many calls. They are made side by side, each as if it had come alone: with its own rights, limits and
// line in the log. Each is answered by a line as soon as it is over, so that none waits for another.

// gatherTime is how long an answer that has come is kept back for others, with which it is sent.
const gatherTime = time.Millisecond

// many makes the calls of a request.
func (ex *exchange) many() error {
	arrived := time.Now()
	var m httpwire.Calls
	if err := ex.decode(&m, httpwire.MaxRenewal); err != nil {
		return err
	}
	if len(m.Calls) == 0 || len(m.Calls) > httpwire.MaxCalls {
		return invalid("%d calls: want 1 to %d", len(m.Calls), httpwire.MaxCalls)
	}
	ex.parts = true
	lines := make(chan []byte, len(m.Calls))
	for i, c := range m.Calls {
		part := &exchange{s: ex.s, r: ex.r, who: ex.who}
		ex.s.workers.run(func() { lines <- part.line(i, c, arrived) })
	}
	ex.w.Header().Set("Content-Type", "application/x-ndjson")
	ex.w.Header().Set("X-Accel-Buffering", "no")
	return ex.gather(lines, len(m.Calls))
}

// gather sends n lines, those together that come together. It returns when all calls are over, also if the client has gone.
func (ex *exchange) gather(lines <-chan []byte, n int) (err error) {
	control := http.NewResponseController(ex.w)
	for n > 0 {
		text := <-lines
		n--
		for soon := time.After(gatherTime); n > 0 && soon != nil; {
			select {
			case line := <-lines:
				text = append(text, line...)
				n--
			case <-soon:
				soon = nil
			}
		}
		if err != nil {
			continue
		}
		_ = control.SetWriteDeadline(time.Now().Add(writeTime)) // not supported in tests
		if _, err = ex.w.Write(text); err == nil && n > 0 {
			err = control.Flush()
		}
	}
	return err
}

// line makes one call, and returns the line that answers it.
func (ex *exchange) line(i int, c httpwire.Call, arrived time.Time) (line []byte) {
	out := httpwire.Called{Index: i, Outcome: httpwire.Unknown}
	defer func() {
		if v := recover(); v != nil { // as net/http does for a request
			ex.logPanic("POST /v1/calls", v)
			out.Problem = &httpwire.Problem{Kind: httpwire.Unknown, Status: http.StatusInternalServerError, Title: "a bug in distlock"}
			line, _ = json.Marshal(out)
			line = append(line, '\n')
		}
	}()
	pattern, status := "POST /v1/acquire", http.StatusOK
	var err error
	switch {
	case (c.Acquire == nil) == (c.Release == nil):
		err = invalid("want either acquire or release")
	case c.Release != nil:
		pattern, status = "POST /v1/release", http.StatusNoContent
		err = ex.releaseHold(*c.Release)
	default:
		var g httpwire.Grant
		if g, err = ex.grant(*c.Acquire, arrived); err == nil {
			out.Grant = &g
		}
	}
	if out.Outcome = httpwire.OK; err != nil {
		p := problemOf(err)
		out.Outcome, out.Problem, status = p.Kind, &p, p.Status
	}
	ex.note(pattern, status, out.Outcome, arrived)
	line, _ = json.Marshal(out)
	return append(line, '\n')
}
