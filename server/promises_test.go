package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// The tests here are of what package server promises: see its comment. Each fails when the promise is broken.

// gated is a backend whose calls wait for the test.
type gated struct {
	*memlock.Backend
	began chan *backendCall
	test  context.Context
}

// backendCall is a call that has begun, and waits until the test lets it go on.
type backendCall struct {
	what, owner string
	at          time.Time
	goOn        chan struct{}
	err         error // its outcome, if not nil
}

// begin waits for the test or its end, also if the caller gives up: so a call may end long after its client has gone.
func (b *gated) begin(what, owner string) error {
	c := &backendCall{what: what, owner: owner, at: time.Now(), goOn: make(chan struct{})}
	b.began <- c
	select {
	case <-c.goOn:
		return c.err
	case <-b.test.Done():
		return errors.New("the test has ended")
	}
}

func (b *gated) Acquire(_ context.Context, r driver.Request) (driver.Grant, error) {
	if err := b.begin("acquire", r.Owner); err != nil {
		return driver.Grant{}, err
	}
	return b.Backend.Acquire(context.Background(), r)
}

func (b *gated) Renew(_ context.Context, holds []driver.Hold) []error {
	if err := b.begin("renew", holds[0].Owner); err != nil {
		return []error{err}
	}
	return b.Backend.Renew(context.Background(), holds)
}

func (b *gated) Release(_ context.Context, h driver.Hold) error {
	if err := b.begin("release", h.Owner); err != nil {
		return err
	}
	return b.Backend.Release(context.Background(), h)
}

// promises is a rig whose backend is gated.
type promises struct {
	*rig
	b *gated
}

func startGated(t *testing.T) *promises {
	b := &gated{memlock.New(), make(chan *backendCall, 100), t.Context()}
	return &promises{start(t, b, Options{}), b}
}

// sent is a request under way.
type sent struct {
	at     time.Time
	leave  context.CancelFunc // lets the client go
	done   chan struct{}      // closed with the answer
	status int
	text   string
}

func (p *promises) send(path, body string) *sent {
	ctx, leave := context.WithCancel(p.Context())
	s := &sent{at: time.Now(), leave: leave, done: make(chan struct{})}
	req := must.Get(http.NewRequestWithContext(ctx, "POST", p.http.URL+path, strings.NewReader(body)))(p)
	go func() {
		defer close(s.done)
		resp, err := p.http.Client().Do(req)
		if err != nil {
			return
		}
		defer resp.Body.Close()
		if text, err := io.ReadAll(resp.Body); err == nil {
			s.status, s.text = resp.StatusCode, string(text)
		}
	}()
	return s
}

// call returns the next call of the backend, which an unanswered request must make.
func (p *promises) call(s *sent, what, owner string) *backendCall {
	p.Helper()
	select {
	case c := <-p.b.began:
		if c.what != what || c.owner != owner || c.at.Before(s.at) {
			p.Fatalf("the backend was called to %s for %s", c.what, c.owner)
		}
		return c
	case <-s.done:
		p.Fatalf("it was answered without a call of the backend: %s", s.text)
	case <-time.After(time.Minute):
		p.Fatalf("the backend was not called to %s", what)
	}
	return nil
}

// noCall ends all requests, and fails if the backend is called meanwhile or was before.
func (p *promises) noCall(why string) {
	p.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.http.Close()
	}()
	for {
		select {
		case c := <-p.b.began:
			close(c.goOn)
			p.Errorf("the backend was called to %s %s", c.what, why)
		case <-ended:
			if len(p.b.began) == 0 {
				return
			}
		}
	}
}

func (p *promises) answered(s *sent, status int, says string) {
	p.Helper()
	<-s.done
	if s.status != status || !strings.Contains(s.text, says) {
		p.Errorf("%d %s; want %d and %q", s.status, s.text, status, says)
	}
}

func renewals(holds ...string) string { return `{"holds":[` + strings.Join(holds, ",") + `]}` }

// An answer is not kept and given again: each call reaches the backend.
func TestNoCache(t *testing.T) {
	t.Parallel()
	p := startGated(t)
	for range 2 {
		s := p.send("/v1/acquire", hold("x", ownerA))
		close(p.call(s, "acquire", ownerA).goOn)
		p.answered(s, 200, `"fence"`)
	}
	for range 2 {
		s := p.send("/v1/renew", renewals(hold("x", ownerA)))
		close(p.call(s, "renew", ownerA).goOn)
		p.answered(s, 200, `"outcome":"ok"`)
	}
	for range 2 {
		s := p.send("/v1/acquire", hold("x", ownerB))
		close(p.call(s, "acquire", ownerB).goOn)
		p.answered(s, 423, `"held"`)
	}
}

// A request that arrives during a call for the same hold has no part in that call's success.
func TestNoSharedCall(t *testing.T) {
	t.Parallel()
	p := startGated(t)
	first := p.send("/v1/acquire", hold("x", ownerA))
	call := p.call(first, "acquire", ownerA)
	second := p.send("/v1/acquire", hold("x", ownerA))
	p.arrives(second)
	close(call.goOn)
	p.answered(first, 200, `"fence"`)
	close(p.call(second, "acquire", ownerA).goOn)
	p.answered(second, 200, `"fence"`)

	first = p.send("/v1/renew", renewals(hold("x", ownerA), hold("x", ownerA)))
	call = p.call(first, "renew", ownerA)
	second = p.send("/v1/renew", renewals(hold("x", ownerA)))
	p.arrives(second)
	close(call.goOn)
	p.answered(first, 200, `"outcome":"ok"`)
	select {
	case c := <-p.b.began:
		close(c.goOn)
		p.answered(second, 200, `"outcome":"ok"`)
	case <-second.done:
		p.answered(second, 200, `"outcome":"unknown"`)
	}
	if n := strings.Count(first.text, `"outcome":"ok"`); n != 1 {
		t.Errorf("one call of the backend was %d successes: %s", n, first.text)
	}
}

// arrives gives a request time to arrive. Were that too short, the test would only see less.
func (p *promises) arrives(s *sent) {
	select {
	case <-s.done:
	case <-time.After(50 * time.Millisecond):
	}
}

// A TTL counts from no later than the call that granted: waited_ms ends before that began.
func TestNoAnchorAtTheAnswer(t *testing.T) {
	t.Parallel()
	p := startGated(t)
	check := func(s *sent, c *backendCall) {
		t.Helper()
		until := c.at.Sub(s.at)
		time.Sleep(until + 50*time.Millisecond) // so that another anchor makes a difference
		close(c.goOn)
		p.answered(s, 200, `"fence"`)
		var g httpwire.Grant
		must.OK(t, json.Unmarshal([]byte(s.text), &g))
		if waited := httpwire.Duration(g.Waited); waited < 0 || waited > until {
			t.Errorf("waited %v, but the backend was called %v after the request", waited, until)
		}
	}
	at := p.send("/v1/acquire", hold("x", ownerA))
	check(at, p.call(at, "acquire", ownerA))
	at = p.send("/v1/acquire", waiting("x", ownerB, 60_000))
	close(p.call(at, "acquire", ownerB).goOn)
	refused := p.call(at, "acquire", ownerB) // once it watches
	must.OK(t, p.b.Backend.Release(t.Context(), driver.Hold{Name: "x", Owner: ownerA, Mode: driver.Exclusive}))
	check(at, refused)
}

// Nothing but a renewal prolongs a hold, however much its client listens.
func TestNothingPushedProlongs(t *testing.T) {
	t.Parallel()
	r := start(t, memlock.New(), Options{})
	short := fmt.Sprintf(`{"name":"x","owner":%q,"ttl_ms":100,"revocable":true}`, ownerA)
	news, _ := r.stream("GET", "/v1/news", "", httpwire.ClientHeader, secret)
	news(httpwire.EventHello)
	text := r.wants(200, "", "POST", "/v1/acquire", short, httpwire.ClientHeader, secret)
	watch, _ := r.stream("POST", "/v1/watch", hold("x", ownerA))
	watch(httpwire.EventArmed)
	var g httpwire.Grant
	must.OK(t, json.Unmarshal([]byte(text), &g))
	r.request("POST", "/v1/locks/x/ask", fmt.Sprintf(`{"fence":"%d"}`, g.Fence))
	r.wants(200, `"fence"`, "POST", "/v1/acquire", waiting("x", ownerB, 60_000))
}

// A client that has gone while it waited gets nothing, and nothing is done for it.
func TestWaiterThatHasGone(t *testing.T) {
	t.Parallel()
	p := startGated(t)
	held := driver.Request{Hold: driver.Hold{Name: "x", Owner: ownerA, Mode: driver.Exclusive, TTL: time.Hour}, Fences: 1}
	must.Get(p.b.Backend.Acquire(t.Context(), held))(t)
	s := p.send("/v1/acquire", waiting("x", ownerB, 60_000))
	for range 2 { // the first try, and the one when it watches
		close(p.call(s, "acquire", ownerB).goOn)
	}
	s.leave()
	for began := time.Now(); p.s.quota.count("") > 0; time.Sleep(time.Millisecond) {
		select {
		case c := <-p.b.began:
			close(c.goOn) // time has passed; the server has not heard yet that the client has gone
		default:
		}
		if time.Since(began) > 2*time.Minute {
			t.Fatal("the server waits for a client that has gone")
		}
	}
	must.OK(t, p.b.Backend.Release(t.Context(), held.Hold))
	p.noCall("for a client that has gone")
}

// A client that has gone before its turn came takes nothing.
func TestNothingIsTakenForAClientThatHasGone(t *testing.T) {
	t.Parallel()
	p := startGated(t)
	gone, leave := context.WithCancel(t.Context())
	leave()
	done := make(chan struct{})
	go func() {
		defer close(done)
		req := httptest.NewRequestWithContext(gone, "POST", "/v1/acquire", strings.NewReader(hold("x", ownerA)))
		p.s.ServeHTTP(httptest.NewRecorder(), req)
	}()
	select {
	case <-done:
	case c := <-p.b.began:
		t.Errorf("the backend was called to %s", c.what)
		close(c.goOn)
	}
}

// Each answer repeats the text of its request, also one that lets the client in nowhere.
func TestAnswersNameTheirRequest(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tokens")
	must.OK(t, os.WriteFile(path, nil, 0o600))
	access := must.Get(OpenAccess(path, nil))(t)
	for _, o := range []Options{{}, {Access: access}, {Hosts: []string{"other"}}} {
		r := start(t, memlock.New(), o)
		for _, call := range []string{"GET /v1", "POST /v1/acquire", "POST /v1/renew", "GET /v1/nothing", "GET /readyz"} {
			method, path, _ := strings.Cut(call, " ")
			resp, _ := r.request(method, path, hold("x", ownerA), httpwire.RequestHeader, call)
			expect.Equal(t, resp.Header.Get(httpwire.RequestHeader), call, "the answer is to")
		}
	}
}

// A client that goes during the call that grants keeps what it was granted: it may not have gone at all.
func TestGrantForAClientThatHasGone(t *testing.T) {
	t.Parallel()
	p := startGated(t)
	s := p.send("/v1/acquire", waiting("x", ownerA, 60_000))
	call := p.call(s, "acquire", ownerA)
	s.leave()
	<-s.done
	p.arrives(&sent{}) // the server hears that the client has gone
	close(call.goOn)
	p.noCall("after the grant for a client that has gone")
	info, err := p.b.Inspect(t.Context(), "x")
	if err != nil || len(info.Holders) != 1 || info.Holders[0].Owner != ownerA {
		t.Errorf("%+v, %v", info, err)
	}
}

// An outcome that is not known is the client's matter: the server neither repeats the call nor releases.
func TestUnknownOutcomeIsTheClients(t *testing.T) {
	t.Parallel()
	for _, lost := range []error{errors.New("no answer"), context.DeadlineExceeded, driver.Unsent(errors.New("down")), driver.ErrClosed} {
		p := startGated(t)
		s := p.send("/v1/acquire", waiting("x", ownerA, 60_000))
		call := p.call(s, "acquire", ownerA)
		call.err = lost
		close(call.goOn)
		p.noCall("after " + lost.Error())
		if <-s.done; s.status < 500 {
			t.Errorf("%v: %d", lost, s.status)
		}
	}
}

// One call at a time acts for an Owner: a release waits for the acquire that it takes back.
func TestOneCallForAnOwner(t *testing.T) {
	t.Parallel()
	p := startGated(t)
	first := p.send("/v1/acquire", hold("x", ownerA))
	call := p.call(first, "acquire", ownerA)
	var others sync.WaitGroup
	for range 2 {
		others.Go(func() { p.arrives(p.send("/v1/release", hold("x", ownerA))) })
	}
	others.Wait()
	if n := len(p.b.began); n > 0 {
		t.Errorf("%d calls during another one for the owner", n)
	}
	close(call.goOn)
	p.answered(first, 200, `"fence"`)
	for range 2 {
		select {
		case c := <-p.b.began:
			close(c.goOn)
		case <-time.After(time.Minute):
			t.Fatal("two releases were sent, and the backend was not called for both")
		}
	}
}
