package server

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// bare makes a request without a network, and returns the answer.
func bare(ctx context.Context, s *Server, method, path, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

// answers makes a request without a network that has to be answered with a status.
func answers(t *testing.T, s *Server, status int, method, path, body string, header ...string) {
	t.Helper()
	if w := bare(t.Context(), s, method, path, body, header...); w.Code != status {
		t.Fatalf("%s %s %s: %d %s; want %d", method, path, body, w.Code, w.Body, status)
	}
}

// An identity has as many holds as it is counted with, whatever else it requests for their owners.
func TestQuotaCountsWhatIsHeld(t *testing.T) {
	t.Parallel()
	short := strings.Replace(hold("x", ownerA), "30000", "10", 1)
	for what, requests := range map[string][][3]string{
		"another name":              {{"POST", "/v1/acquire", hold("y", ownerA)}},
		"the release of a stranger": {{"POST", "/v1/release", hold("y", ownerA)}},
		"a renewal of a stranger":   {{"POST", "/v1/renew", `{"holds":[` + hold("y", ownerA) + `]}`}},
		"another kind of lock":      {{"POST", "/v1/acquire", strings.Replace(hold("x", ownerA), "{", `{"mode":"write",`, 1)}},
		"a shorter TTL":             {{"POST", "/v1/acquire", short}, {"POST", "/v1/renew", `{"holds":[` + short + `]}`}},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := must.Get(New(memlock.New(), Options{MaxHolds: 1}))(t)
				do := func(method, path, body string) int { return bare(t.Context(), s, method, path, body).Code }
				must.Equal(t, do("POST", "/v1/acquire", hold("x", ownerA)), 200)
				for _, r := range requests {
					do(r[0], r[1], r[2])
				}
				time.Sleep(time.Second)
				if status, n := do("POST", "/v1/acquire", hold("z", ownerB)), s.quota.allHolds(); status != 429 || n != 1 {
					t.Errorf("a second hold: %d, %d are counted", status, n)
				}
				time.Sleep(30 * time.Second)
				if status := do("POST", "/v1/acquire", hold("z", ownerB)); status != 200 {
					t.Errorf("after the TTL: %d", status)
				}
			})
		})
	}
}

// apart is a backend that keeps permits apart from locks, as Redis does.
type apart struct{ *memlock.Backend }

func (b apart) Release(ctx context.Context, h driver.Hold) error {
	if h.Mode == driver.Counted {
		return driver.ErrLost
	}
	return b.Backend.Release(ctx, h)
}

func (b apart) Renew(ctx context.Context, holds []driver.Hold) []error {
	if holds[0].Mode == driver.Counted {
		return []error{driver.ErrLost}
	}
	return b.Backend.Renew(ctx, holds)
}

// A hold is counted until a fact says that it has ended. Permits that are not there say nothing about a lock.
func TestQuotaOfAnotherKind(t *testing.T) {
	t.Parallel()
	permit := func(ttl string) string {
		return strings.NewReplacer("{", `{"mode":"counted",`, "30000", ttl).Replace(hold("x", ownerA))
	}
	for _, isApart := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var b driver.Backend = memlock.New()
			if isApart {
				b = apart{memlock.New()}
			}
			s := must.Get(New(b, Options{MaxHolds: 1}))(t)
			do := func(path, body string, status int) {
				t.Helper()
				if w := bare(t.Context(), s, "POST", path, body); w.Code != status {
					t.Errorf("apart %v: %s %s: %d %s, want %d", isApart, path, body, w.Code, w.Body, status)
				}
			}
			do("/v1/acquire", hold("x", ownerA), 200)
			do("/v1/renew", `{"holds":[`+permit("3600000")+`]}`, 200)
			do("/v1/acquire", hold("y", ownerB), 429)
			if !isApart { // it has renewed the lock
				time.Sleep(time.Minute)
				do("/v1/acquire", hold("y", ownerB), 429)
				do("/v1/release", permit("0"), 204)
				do("/v1/acquire", hold("y", ownerB), 200)
				return
			}
			do("/v1/release", permit("0"), 410)
			do("/v1/acquire", hold("y", ownerB), 429)
			do("/v1/release", hold("x", ownerA), 204)
			do("/v1/acquire", hold("y", ownerB), 200)
		})
	}
}

// The loss of a lock that has ended says nothing about the permit that its owner was granted since.
func TestQuotaOfALaterKind(t *testing.T) {
	t.Parallel()
	var q quota
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Counted} {
		h := driver.Hold{Name: "x", Owner: ownerA, Mode: mode, TTL: time.Hour}
		must.OK(t, expect.Err2(q.add("ci", h, 0, 1)))
		q.granted("ci", h, false)
	}
	if q.remove(driver.Hold{Name: "x", Owner: ownerA, Mode: driver.Exclusive}, true); q.allHolds() != 1 {
		t.Error("the permit is not counted")
	}
	if q.remove(driver.Hold{Name: "x", Owner: ownerA, Mode: driver.Counted}, true); q.allHolds() != 0 {
		t.Error("a permit that is lost is counted")
	}
}

// Renewals and acquires without an answer may have had their effect, so their holds are counted.
func TestQuotaOfUnknownOutcomes(t *testing.T) {
	t.Parallel()
	long := strings.Replace(hold("x", ownerA), "30000", "3600000", 1)
	for path, body := range map[string]string{"/v1/acquire": long, "/v1/renew": `{"holds":[` + long + `]}`} {
		synctest.Test(t, func(t *testing.T) {
			b := &mute{Backend: memlock.New()}
			s := must.Get(New(b, Options{MaxHolds: 1}))(t)
			answers(t, s, 200, "POST", "/v1/acquire", hold("x", ownerA))
			b.silent = true
			bare(t.Context(), s, "POST", path, body)
			b.silent = false
			time.Sleep(59 * time.Minute)
			if w := bare(t.Context(), s, "POST", "/v1/acquire", hold("y", ownerB)); w.Code != 429 {
				t.Errorf("after %s without an answer: %d", path, w.Code)
			}
		})
	}
}

// mute is a backend that does what it is asked for. While it is silent its answers are lost.
type mute struct {
	*memlock.Backend
	silent bool
}

var errNoAnswer = errors.New("no answer")

func (b *mute) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := b.Backend.Acquire(ctx, r)
	if b.silent {
		return driver.Grant{}, errNoAnswer
	}
	return g, err
}

func (b *mute) Renew(ctx context.Context, holds []driver.Hold) []error {
	errs := b.Backend.Renew(ctx, holds)
	if b.silent {
		errs[0] = errNoAnswer
	}
	return errs
}

// A place in a queue is counted as long as it may live, whatever its owner requests after it.
func TestQuotaOfPlacesThatLiveOn(t *testing.T) {
	t.Parallel()
	queued := func(ttl string) string {
		return strings.NewReplacer("{", `{"queue":true,`, "30000", ttl).Replace(hold("x", ownerA))
	}
	for what, then := range map[string]string{
		"without the queue":   hold("x", ownerA),
		"with a shorter TTL":  queued("10"),
		"with an error":       strings.Replace(queued("10"), "{", `{"mode":"counted","limit":2,`, 1),
		"with a wait":         waiting("x", ownerA, 10),
		"with a wait, failed": strings.Replace(waiting("x", ownerA, 10), "{", `{"mode":"counted","limit":2,`, 1),
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := memlock.New()
				s := must.Get(New(b, Options{MaxHolds: 1}))(t)
				held := driver.Request{Hold: driver.Hold{Name: "x", Owner: ownerB, Mode: driver.Exclusive, TTL: 48 * time.Hour}, Fences: 1}
				must.Get(b.Acquire(t.Context(), held))(t)
				do := func(body string) int { return bare(t.Context(), s, "POST", "/v1/acquire", body).Code }
				must.Equal(t, do(queued("86400000")), 423)
				do(then)
				time.Sleep(23 * time.Hour)
				expect.Equal(t, do(hold("y", ownerB)), 429, "a hold beside the place")
				time.Sleep(2 * time.Hour)
				if status := do(hold("y", ownerB)); status != 200 {
					t.Errorf("after the place has ended: %d", status)
				}
			})
		})
	}
}

// A hold that was granted after a long wait is counted as long as it is renewed.
func TestQuotaAfterAWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := must.Get(New(memlock.New(), Options{MaxHolds: 1}))(t)
		first := driver.Request{Hold: driver.Hold{Name: "x", Owner: ownerB, Mode: driver.Exclusive, TTL: 50 * time.Second}}
		must.Get(s.backend.Acquire(t.Context(), first))(t)
		mine := strings.Replace(hold("x", ownerA), "30000", "3000", 1)
		answers(t, s, 200, "POST", "/v1/acquire", strings.Replace(mine, "{", `{"wait_ms":60000,`, 1))
		for range 5 {
			time.Sleep(2 * time.Second)
			bare(t.Context(), s, "POST", "/v1/renew", `{"holds":[`+mine+`]}`)
			if w := bare(t.Context(), s, "POST", "/v1/acquire", hold("y", ownerB)); w.Code != 429 {
				t.Fatalf("a second hold: %d %s", w.Code, w.Body)
			}
		}
		time.Sleep(3 * time.Second)
		expect.Equal(t, s.quota.allHolds(), 0, "holds are counted after the TTL")
	})
}

// A hold counts though its place has ceased to count while it waited.
func TestQuotaAfterALongWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := must.Get(New(memlock.New(), Options{MaxHolds: 1}))(t)
		first := driver.Request{Hold: driver.Hold{Name: "x", Owner: ownerB, Mode: driver.Exclusive, TTL: 50 * time.Second}}
		must.Get(s.backend.Acquire(t.Context(), first))(t)
		mine := strings.Replace(hold("x", ownerA), "30000", "3000", 1)
		answers(t, s, 423, "POST", "/v1/acquire", strings.Replace(mine, "{", `{"queue":true,`, 1))
		granted := make(chan int)
		go func() {
			granted <- bare(t.Context(), s, "POST", "/v1/acquire", strings.Replace(mine, "{", `{"wait_ms":60000,`, 1)).Code
		}()
		time.Sleep(10 * time.Second)
		bare(t.Context(), s, "POST", "/v1/acquire", strings.Replace(hold("y", ownerB), "30000", "1", 1)) // removes what does not count
		if code := <-granted; code != 200 || s.quota.allHolds() != 1 {
			t.Errorf("%d, and %d holds are counted", code, s.quota.allHolds())
		}
	})
}

// Clients that give up leave nothing that is counted.
func TestQuotaAfterAborts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := must.Get(New(memlock.New(), Options{MaxHolds: 10, MaxStreams: 2}))(t)
		answers(t, s, 200, "POST", "/v1/acquire", hold("x", ownerA))
		for range 5 {
			ctx, cancel := context.WithCancel(t.Context())
			for _, c := range [][3]string{
				{"POST", "/v1/acquire", waiting("x", driver.NewOwner(), 60_000)}, {"POST", "/v1/locks/x?wait=1m&ttl=24h", ""},
			} {
				go bare(ctx, s, c[0], c[1], c[2])
			}
			synctest.Wait()
			must.Equal(t, s.quota.allStreams(), 2, "wait")
			if w := bare(t.Context(), s, "POST", "/v1/watch", hold("x", ownerB)); w.Code != 429 {
				t.Errorf("a third stream: %d", w.Code)
			}
			cancel()
			synctest.Wait()
			if holds, streams := s.quota.allHolds(), s.quota.allStreams(); holds != 1 || streams != 0 {
				t.Errorf("%d holds and %d streams are counted", holds, streams)
			}
		}
	})
}

// accessOfOne makes the access of one client, ci, and returns the function that gives it another token.
func accessOfOne(t *testing.T, token string) (access *Access, write func(token string)) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tokens")
	write = func(token string) {
		must.OK(t, os.WriteFile(file, []byte("ci sha256:"+HashToken(token)+" lock,see *\n# "+token), 0o600))
	}
	write(token)
	access = must.Get(OpenAccess(file, nil))(t)
	return access, write
}

// A stream ends when the token of its client is taken away, and no longer counts for any client.
func TestStreamOfARevokedToken(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"GET /v1/events", "POST /v1/watch", "GET /v1/news"} {
		synctest.Test(t, func(t *testing.T) {
			access, write := accessOfOne(t, "old")
			s := must.Get(New(memlock.New(), Options{Access: access}))(t)
			method, url, _ := strings.Cut(path, " ")
			body := ""
			if method == "POST" {
				body = hold("x", ownerA)
			}
			var w *httptest.ResponseRecorder
			go func() {
				w = bare(t.Context(), s, method, url, body, "Authorization", "Bearer old", "Distlock-Client", secret)
			}()
			time.Sleep(5 * time.Second)
			must.Equal(t, s.quota.count("ci"), 1, path, "streams")
			write("newer")
			time.Sleep(pingTime + time.Second)
			synctest.Wait()
			if w == nil || w.Code != http.StatusOK {
				t.Fatalf("%s goes on", path)
			}
			if a, b := s.quota.count("ci"), s.quota.count(""); a != 0 || b != 0 {
				t.Errorf("%s: %d streams of ci and %d of no one are counted", path, a, b)
			}
		})
	}
}

// Places in queues count, as they live as long as holds: a client can't have more of them by giving up. One that is
// granted, or released, counts no more.
func TestQuotaCountsPlacesInQueues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := serverOf(t, Options{MaxHolds: 3})
		do := func(path, body string, status int) {
			t.Helper()
			if w := bare(t.Context(), s, "POST", path, body); w.Code != status {
				t.Errorf("%s %s: %d %s, want %d", path, body, w.Code, w.Body, status)
			}
		}
		queue := func(owner string) string { return strings.Replace(hold("x", owner), "{", `{"queue":true,`, 1) }
		do("/v1/acquire", hold("x", ownerA), 200)
		for range 3 {
			do("/v1/acquire", queue(ownerB), 423)
		}
		third := driver.NewOwner()
		do("/v1/acquire", waiting("x", third, 10), 423)
		do("/v1/acquire", queue(driver.NewOwner()), 429)
		do("/v1/acquire", waiting("x", driver.NewOwner(), 10), 429)
		expect.Equal(t, s.quota.allHolds(), 1, "holds")
		do("/v1/release", hold("x", third), 204)
		do("/v1/release", hold("x", ownerA), 204)
		do("/v1/acquire", queue(ownerB), 200)
		expect.Equal(t, s.quota.allHolds(), 1, "holds after a grant")
		for _, name := range []string{"y", "z"} {
			do("/v1/acquire", hold(name, driver.NewOwner()), 200)
		}
		do("/v1/acquire", hold("w", driver.NewOwner()), 429)
		time.Sleep(31 * time.Second)
		do("/v1/acquire", hold("w", driver.NewOwner()), 200)
	})
}

// A client whose token is withdrawn while it waits gets no lock, and leaves the queue.
func TestWaitOfARevokedToken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		access, write := accessOfOne(t, "old")
		b := memlock.New()
		s := must.Get(New(b, Options{Access: access}))(t)
		held := driver.Request{Hold: driver.Hold{Name: "x", Owner: ownerA, Mode: driver.Exclusive, TTL: time.Hour}, Fences: 1}
		must.Get(b.Acquire(t.Context(), held))(t)
		var w *httptest.ResponseRecorder
		go func() {
			w = bare(t.Context(), s, "POST", "/v1/locks/x?ttl=1h&wait=30s", "", "Authorization", "Bearer old")
		}()
		time.Sleep(5 * time.Second)
		write("newer")
		time.Sleep(5 * time.Second)
		must.OK(t, b.Release(t.Context(), held.Hold))
		synctest.Wait()
		if w == nil || w.Code != http.StatusUnauthorized {
			t.Fatalf("answer: %+v", w)
		}
		if info, err := b.Inspect(t.Context(), "x"); err != nil || len(info.Holders)+len(info.Waiters) > 0 {
			t.Errorf("the lock: %+v, %v", info, err)
		}
	})
}
