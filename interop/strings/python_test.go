package strings

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/testserver"
)

// python is a process with redis-py, which does one call after the other.
type python struct {
	mu  sync.Mutex
	in  *json.Encoder
	out *json.Decoder
}

// pythonCall and pythonAnswer are what peer.py reads and writes.
type pythonCall struct {
	Do   string `json:"do"`
	Name string `json:"name,omitempty"`
	TTL  int64  `json:"ttl,omitempty"` // ms
	Wait bool   `json:"wait"`
	ID   int    `json:"id"`
}

type pythonAnswer struct {
	ID    int    `json:"id"`
	Error string `json:"error"`
}

func newPython(t *testing.T) side {
	t.Helper()
	cmd := exec.Command(testserver.RedisPy(t), "peer.py", testserver.SharedRedis(t).Addr())
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := testserver.Spawn(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close() // it ends when there is nothing more to read
		io.Copy(io.Discard, out)
		cmd.Wait()
	})
	return &python{in: json.NewEncoder(in), out: json.NewDecoder(bufio.NewReader(out))}
}

func (p *python) call(c pythonCall) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.in.Encode(c); err != nil {
		return 0, err
	}
	var a pythonAnswer
	if err := p.out.Decode(&a); err != nil {
		return 0, err
	}
	switch a.Error {
	case "":
		return a.ID, nil
	case "busy":
		return 0, errBusy
	case "not mine":
		return 0, errNotMine
	}
	return 0, errors.New(a.Error)
}

func (p *python) try(_ context.Context, name string, ttl time.Duration) (held, error) {
	return p.take(name, ttl, false)
}

func (p *python) lock(_ context.Context, name string, ttl time.Duration) (held, error) {
	return p.take(name, ttl, true)
}

func (p *python) take(name string, ttl time.Duration, wait bool) (held, error) {
	id, err := p.call(pythonCall{Do: "lock", Name: prefix + name, TTL: ttl.Milliseconds(), Wait: wait})
	return pythonHeld{p, id}, err
}

type pythonHeld struct {
	p  *python
	id int
}

func (h pythonHeld) unlock(context.Context) error {
	_, err := h.p.call(pythonCall{Do: "unlock", ID: h.id})
	return err
}

func (h pythonHeld) extend(_ context.Context, ttl time.Duration) error {
	_, err := h.p.call(pythonCall{Do: "extend", ID: h.id, TTL: ttl.Milliseconds()})
	return err
}
