package httplock

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/wait"
)

const (
	renewalsAtOnce = 16
	maxLine        = 64 << 10 // bytes of an answer for one hold
)

// Renew sends the holds in chunks that a server takes. Lines of the answers count as they come.
func (b *Backend) Renew(ctx context.Context, holds []driver.Hold) []error {
	ctx, end := b.during(ctx)
	defer end()
	errs := make([]error, len(holds))
	var chunks []*chunk
	for i, h := range holds {
		if errs[i] = b.checkRenewal(h); errs[i] != nil {
			continue
		}
		text, err := json.Marshal(httpwire.FromHold(h))
		if err != nil {
			errs[i] = err
			continue
		}
		if n := len(chunks); n == 0 || !chunks[n-1].hasRoom(text) {
			chunks = append(chunks, &chunk{})
		}
		chunks[len(chunks)-1].add(i, text)
	}
	if len(chunks) == 1 {
		b.renew(ctx, chunks[0], holds, errs)
		return errs
	}
	var tasks wait.Group
	slots := make(chan struct{}, renewalsAtOnce)
	for _, c := range chunks {
		slots <- struct{}{}
		tasks.Go(func() {
			defer func() { <-slots }()
			b.renew(ctx, c, holds, errs)
		})
	}
	tasks.Wait()
	return errs
}

func (b *Backend) checkRenewal(h driver.Hold) error {
	if err := b.checkHold(h); err != nil {
		return err
	}
	return h.ValidateRenewal()
}

// chunk is the body of a request for some of the holds.
type chunk struct {
	at   []int // of each in the slice of holds
	text bytes.Buffer
}

const bodyStart, bodyEnd = `{"holds":[`, `]}`

func (c *chunk) hasRoom(hold []byte) bool {
	return len(c.at) < httpwire.MaxHolds && c.text.Len()+1+len(hold)+len(bodyEnd) < httpwire.MaxRenewal
}

func (c *chunk) add(i int, hold []byte) {
	if len(c.at) == 0 {
		c.text.WriteString(bodyStart)
	} else {
		c.text.WriteByte(',')
	}
	c.text.Write(hold)
	c.at = append(c.at, i)
}

// renew makes one request, and writes what it learns into errs.
func (b *Backend) renew(ctx context.Context, c *chunk, holds []driver.Hold, errs []error) {
	c.text.WriteString(bodyEnd)
	answered := make([]bool, len(c.at))
	err := b.client.renew(ctx, c.text.Bytes(), func(from *endpoint, line httpwire.Renewed) bool {
		if line.Index < 0 || line.Index >= len(c.at) || answered[line.Index] {
			return false
		}
		answered[line.Index] = true
		i := c.at[line.Index]
		if errs[i] = outcomeOf(line); errs[i] != nil {
			errs[i] = fail("renew", holds[i].Name, tried{{from, errs[i]}})
		}
		b.news.renewed(holds[i], errs[i])
		b.worked(errs[i])
		return true
	})
	for n, i := range c.at {
		if !answered[n] {
			errs[i] = fail("renew", holds[i].Name, err)
		}
	}
}

// outcomeOf returns the fact in a line, or an error that is none.
func outcomeOf(line httpwire.Renewed) error {
	err := line.Outcome.Err(line.Detail)
	switch {
	case err == nil, errors.Is(err, driver.ErrLost), driver.Final(err):
		return err
	case errors.Is(err, httpwire.ErrDenied):
		return driver.Unsent(err) // the right may be given back
	}
	return fmt.Errorf("the server does not know the outcome: %s", line.Detail)
}

// renew sends a renewal, and calls each with the lines of the answer until it returns false. It returns why
// there are no more lines, and never nil.
func (c *client) renew(ctx context.Context, body []byte, each func(*endpoint, httpwire.Renewed) bool) error {
	a, err := c.do(ctx, request{method: http.MethodPost, path: "/v1/renew", body: body, status: http.StatusOK})
	if err != nil {
		if errors.Is(err, driver.ErrLost) || errors.Is(err, driver.ErrHeld) {
			err = errors.New(err.Error()) // about all of them at once: no server says that
		}
		return err
	}
	defer a.Body.Close()
	lines := bufio.NewScanner(a.Body)
	lines.Buffer(nil, maxLine)
	malformed, facts := false, false
	for !malformed && lines.Scan() {
		var line httpwire.Renewed
		malformed = json.Unmarshal(lines.Bytes(), &line) != nil || !each(a.from, line)
		outcome := outcomeOf(line)
		facts = facts || outcome == nil || isFact(outcome)
	}
	err = errNoLine
	switch {
	case lines.Err() != nil: // so the last line may be half a line
		err = noAnswer(ctx, fmt.Errorf("the answer broke off: %w", lines.Err()))
	case malformed:
		err = errors.New("the answer is malformed")
	}
	if err != errNoLine || !facts { // the server works, and its backend may not
		c.leave(ctx, a.from)
	}
	return tried{{a.from, err}}
}
