package fencehttp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/distlock/distlock/fence"
	"github.com/distlock/distlock/fence/fencehttp"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// serve starts a server with a handler that answers with the fence that it received.
func serve(t *testing.T, guard fence.Guard, o *fencehttp.Options) *httptest.Server {
	t.Helper()
	h := must.Get(fencehttp.New(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, fencehttp.Fence(r.Context()))
	}), guard, o))(t)
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

// ask sends a request with these fences in its header, and returns the answer and its body.
func ask(t *testing.T, method, url string, fences ...string) (*http.Response, string) {
	t.Helper()
	r := must.Get(http.NewRequestWithContext(t.Context(), method, url, nil))(t)
	for _, f := range fences {
		r.Header.Add(fencehttp.Header, f)
	}
	response := must.Get(http.DefaultClient.Do(r))(t)
	defer response.Body.Close()
	body := must.Get(io.ReadAll(response.Body))(t)
	return response, string(body)
}

func TestStatuses(t *testing.T) {
	s := serve(t, new(fence.Memory), nil)
	for _, c := range []struct {
		method, path string
		fences       []string
		want         int
	}{
		{"GET", "/a", []string{"33"}, 200},
		{"PUT", "/a", []string{"33"}, 200},
		{"GET", "/a", []string{"34"}, 200}, // a read also presents its fence
		{"PUT", "/a", []string{"33"}, 412},
		{"GET", "/a", []string{"33"}, 412},
		{"PUT", "/b", []string{"33"}, 200},
		{"PUT", "/a", []string{"18446744073709551615"}, 200},
		{"PUT", "/c", nil, 428},
		{"PUT", "/c", []string{"1", "2"}, 400},
		{"PUT", "/c", []string{"1", "1"}, 400},
		{"PUT", "/c", []string{""}, 400},
		{"PUT", "/c", []string{"0"}, 400},
		{"PUT", "/c", []string{"-1"}, 400},
		{"PUT", "/c", []string{"+1"}, 400},
		{"PUT", "/c", []string{"01"}, 400},
		{"PUT", "/c", []string{"1_0"}, 400},
		{"PUT", "/c", []string{"0x1"}, 400},
		{"PUT", "/c", []string{"1, 2"}, 400},
		{"PUT", "/c", []string{"1.0"}, 400},
		{"PUT", "/c", []string{"18446744073709551616"}, 400},
		{"PUT", "/c", []string{"stale"}, 400},
		{"PUT", "/c", []string{"1"}, 200}, // none of the refused fences has counted
	} {
		response, body := ask(t, c.method, s.URL+c.path, c.fences...)
		if response.StatusCode != c.want {
			t.Errorf("%s %s %q: %d %s", c.method, c.path, c.fences, response.StatusCode, body)
		}
		if c.want == 200 && body != c.fences[0] {
			t.Errorf("the handler received %s for %q", body, c.fences)
		}
		expect.Equal(t, response.Header.Get("Cache-Control")+" "+response.Header.Get("Vary"), "no-store "+fencehttp.Header, "the headers for caches")
	}
}

// A refusal reveals nothing about the other fence, except that it is greater.
func TestRefusalsTellNoFence(t *testing.T) {
	s := serve(t, new(fence.Memory), nil)
	ask(t, "GET", s.URL+"/a", "987654321")
	response, body := ask(t, "GET", s.URL+"/a", "33")
	if all := fmt.Sprint(response.Header, body); strings.Contains(all, "987654321") || response.Header.Get(fencehttp.Header) != "stale" {
		t.Error(all)
	}
	var stale *fence.StaleError
	if err := fencehttp.Stale(response); !errors.As(err, &stale) || *stale != (fence.StaleError{Resource: "/a", Fence: 33}) {
		t.Errorf("%v", err)
	}
	response, _ = ask(t, "GET", s.URL+"/a", "987654321")
	expect.OK(t, fencehttp.Stale(response))
}

func TestOptions(t *testing.T) {
	s := serve(t, new(fence.Memory), &fencehttp.Options{
		Optional:    true,
		StaleStatus: http.StatusConflict,
		Resource:    func(r *http.Request) string { return r.URL.Query().Get("of") },
	})
	for _, c := range []struct {
		url   string
		fence []string
		want  int
	}{
		{"/x?of=a", []string{"34"}, 200}, {"/y?of=a", []string{"33"}, 409}, {"/y?of=b", []string{"33"}, 200},
		{"/x", []string{"33"}, 400}, {"/x?of=a", nil, 200}, {"/x?of=a", []string{"no"}, 400},
	} {
		if response, body := ask(t, "GET", s.URL+c.url, c.fence...); response.StatusCode != c.want {
			t.Errorf("%s %q: %d %s", c.url, c.fence, response.StatusCode, body)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	ok := http.NotFoundHandler()
	for name, make := range map[string]func() (http.Handler, error){
		"no handler": func() (http.Handler, error) { return fencehttp.New(nil, nil, nil) },
		"status":     func() (http.Handler, error) { return fencehttp.New(ok, nil, &fencehttp.Options{StaleStatus: 200}) },
	} {
		expect.Be(t, expect.Err(make()), fence.ErrInvalid, name)
	}
}

// While a request is inside, no request with a greater fence enters. No request stays inside.
func TestRequestsAreInside(t *testing.T) {
	var guard fence.Memory
	entered, goOn := make(chan bool), make(chan bool)
	h := must.Get(fencehttp.New(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		entered <- true
		<-goOn
		panic(http.ErrAbortHandler)
	}), &guard, nil))(t)
	go func() {
		defer func() { _ = recover() }()
		r := httptest.NewRequest("PUT", "/a", nil)
		fencehttp.Set(r.Header, 33)
		h.ServeHTTP(httptest.NewRecorder(), r)
	}()
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	expect.Be(t, expect.Err(guard.Enter(ctx, "/a", 34)), context.Canceled, "entered beside a request under a smaller fence")
	close(goOn)
	expect.OK(t, expect.Err(guard.Enter(t.Context(), "/a", 34)))
}

// broken is a guard whose Enter fails.
type broken struct{}

func (broken) Enter(context.Context, string, uint64) (func(), error) {
	return nil, errors.New("secret: no such host")
}

func TestGuardThatFails(t *testing.T) {
	s := serve(t, broken{}, nil)
	if response, body := ask(t, "GET", s.URL, "33"); response.StatusCode != 503 || strings.Contains(body, "secret") {
		t.Errorf("%d %s", response.StatusCode, body)
	}
}

// Without a guard the handler's own store decides.
func TestRefuse(t *testing.T) {
	for _, o := range []*fencehttp.Options{nil, {StaleStatus: http.StatusConflict}} {
		h := must.Get(fencehttp.New(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			err := fence.Check("a", fencehttp.Fence(r.Context()), 34)
			if fencehttp.Refuse(w, r, fmt.Errorf("store: %w", err)) {
				return
			}
			fmt.Fprint(w, "done")
		}), nil, o))(t)
		s := httptest.NewServer(h)
		defer s.Close()
		want := 412
		if o != nil {
			want = o.StaleStatus
		}
		if response, body := ask(t, "PUT", s.URL, "33"); response.StatusCode != want || strings.Contains(body, "34") {
			t.Errorf("%d %s", response.StatusCode, body)
		}
		if response, body := ask(t, "PUT", s.URL, "34"); response.StatusCode != 200 || body != "done" {
			t.Errorf("%d %s", response.StatusCode, body)
		}
	}
}

type fenceKey struct{}

func fenceOf(ctx context.Context) uint64 {
	f, _ := ctx.Value(fenceKey{}).(uint64)
	return f
}

func TestTransport(t *testing.T) {
	sent := make(chan string, 4)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		sent <- strings.Join(r.Header.Values(fencehttp.Header), "+")
	}))
	defer s.Close()
	client := &http.Client{Transport: &fencehttp.Transport{Fence: fenceOf}}
	send := func(f uint64, own string) {
		ctx := context.WithValue(t.Context(), fenceKey{}, f)
		r := must.Get(http.NewRequestWithContext(ctx, "PUT", s.URL, nil))(t)
		if own != "" {
			r.Header.Set(fencehttp.Header, own)
		}
		response := must.Get(client.Do(r))(t)
		response.Body.Close()
		expect.Equal(t, r.Header.Get(fencehttp.Header), own, "the request was changed")
	}
	send(33, "")
	send(0, "")
	send(33, "34")
	client.Transport = &fencehttp.Transport{Base: http.DefaultTransport}
	send(33, "")
	for _, want := range []string{"33", "", "34", ""} {
		expect.Equal(t, <-sent, want, "sent")
	}
}

// A handmade request, which goes to no client, may have a nil Header.
func TestTransportMakesAHeader(t *testing.T) {
	s := serve(t, new(fence.Memory), nil)
	r := must.Get(http.NewRequestWithContext(context.WithValue(t.Context(), fenceKey{}, uint64(33)), "GET", s.URL+"/a", nil))(t)
	r.Header = nil
	response := must.Get((&fencehttp.Transport{Fence: fenceOf}).RoundTrip(r))(t)
	defer response.Body.Close()
	if response.StatusCode != 200 || r.Header != nil {
		t.Errorf("%d, %v", response.StatusCode, r.Header)
	}
}

func TestSet(t *testing.T) {
	h := http.Header{}
	h.Add(fencehttp.Header, "1")
	h.Add(fencehttp.Header, "2")
	fencehttp.Set(h, 33)
	if f, err := fencehttp.Parse(h); f != 33 || err != nil {
		t.Error(f, err)
	}
	fencehttp.Set(h, 0)
	if len(h) != 0 {
		t.Error(h)
	}
}
