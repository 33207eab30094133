package kubelock

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/must"
)

// fakeServer is what an API server does with Leases, in one namespace.
type fakeServer struct {
	*httptest.Server
	t     testing.TB
	token string

	mu       sync.Mutex
	version  int
	leases   map[string]map[string]any
	watchers map[chan string]string // by the name of a Lease: events
	requests []string               // methods and paths
	fault    func(w http.ResponseWriter, r *http.Request) (done bool)
	ahead    time.Duration // of its clock
	proxy    time.Duration // how far a proxy's clock is ahead of its clock
}

const fakePath = "/apis/coordination.k8s.io/v1/namespaces/shop/leases"

func newFake(t testing.TB) *fakeServer {
	f := &fakeServer{t: t, token: "hunter2", version: 100, leases: map[string]map[string]any{}, watchers: map[chan string]string{}}
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(f.serve))
	f.Config.ErrorLog = log.New(io.Discard, "", 0)
	f.StartTLS()
	t.Cleanup(func() {
		f.CloseClientConnections()
		f.Close()
	})
	return f
}

// kubeconfig writes a kubeconfig for the server, with more fields of its user, and returns its path.
func (f *fakeServer) kubeconfig(user map[string]any) string {
	f.t.Helper()
	config := map[string]any{
		"current-context": "c", "contexts": []any{map[string]any{"name": "c", "context": map[string]any{"cluster": "k", "user": "u", "namespace": "shop"}}},
		"clusters": []any{map[string]any{"name": "k", "cluster": map[string]any{"server": f.URL, "certificate-authority-data": pemOf(f)}}},
		"users":    []any{map[string]any{"name": "u", "user": user}},
	}
	return writeFile(f.t, "kubeconfig", string(must.Get(json.Marshal(config))(f.t)))
}

func pemOf(f *fakeServer) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw})
}

func writeFile(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must.OK(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func (f *fakeServer) url() string {
	return "kube:///shop?kubeconfig=" + url.QueryEscape(f.kubeconfig(map[string]any{"token": f.token})) + "&timeout=1m"
}

// setFault lets a function answer requests first.
func (f *fakeServer) setFault(fault func(w http.ResponseWriter, r *http.Request) (done bool)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

// fail answers as the API does.
func fail(w http.ResponseWriter, code int, kind, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "code": code, "message": message, "details": map[string]any{"kind": kind}})
}

func (f *fakeServer) serve(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.requests = append(f.requests, r.Method+" "+r.URL.Path)
	fault, token := f.fault, f.token
	w.Header().Set("Date", f.now().Add(f.proxy).Format(http.TimeFormat))
	f.mu.Unlock()
	name := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, fakePath), "/")
	switch {
	case fault != nil && fault(w, r):
	case r.Header.Get("Authorization") != "Bearer "+token:
		fail(w, http.StatusUnauthorized, "", "Unauthorized")
	case r.URL.Path == "/version":
		io.WriteString(w, `{"gitVersion":"v1.36.3"}`)
	case !strings.HasPrefix(r.URL.Path, fakePath):
		fail(w, http.StatusNotFound, "namespaces", "namespaces not found")
	case r.URL.Query().Has("watch"):
		f.watch(w, r, strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name="))
	default:
		f.one(w, r, name)
	}
}

func (f *fakeServer) one(w http.ResponseWriter, r *http.Request, name string) {
	var sent map[string]any
	json.NewDecoder(r.Body).Decode(&sent)
	f.mu.Lock()
	defer f.mu.Unlock()
	old, exists := f.leases[name]
	switch {
	case r.Method == http.MethodGet && name == "":
		items := []any{}
		for _, l := range f.leases {
			items = append(items, l)
		}
		json.NewEncoder(w).Encode(map[string]any{"items": items})
	case r.Method == http.MethodPost:
		name = sent["metadata"].(map[string]any)["name"].(string)
		switch {
		case r.URL.Query().Get("dryRun") == "All":
			json.NewEncoder(w).Encode(f.stamped(sent))
			return
		case f.leases[name] != nil:
			fail(w, http.StatusConflict, "leases", "already exists")
			return
		}
		f.put(w, "ADDED", name, sent)
	case !exists:
		fail(w, http.StatusNotFound, "leases", "leases not found")
	case r.Method == http.MethodPut:
		if sent["metadata"].(map[string]any)["resourceVersion"] != old["metadata"].(map[string]any)["resourceVersion"] {
			fail(w, http.StatusConflict, "leases", "the object has been modified")
			return
		}
		f.put(w, "MODIFIED", name, sent)
	default:
		json.NewEncoder(w).Encode(old)
	}
}

// put stores a Lease, and tells who watches. mu is held.
func (f *fakeServer) put(w http.ResponseWriter, event, name string, l map[string]any) {
	f.version++
	f.leases[name] = f.stamped(l)
	f.tell(event, name)
	json.NewEncoder(w).Encode(l)
}

func (f *fakeServer) now() time.Time { return time.Now().Add(f.ahead).UTC() }

// stamped returns a Lease with what the server writes into it. mu is held.
func (f *fakeServer) stamped(l map[string]any) map[string]any {
	m := l["metadata"].(map[string]any)
	m["resourceVersion"] = strconv.Itoa(f.version)
	m["managedFields"] = []any{
		map[string]any{"manager": "x", "time": f.now().Add(-time.Hour).Format(time.RFC3339)}, map[string]any{"time": f.now().Format(time.RFC3339)},
	}
	return l
}

// tell tells who watches a Lease. mu is held.
func (f *fakeServer) tell(event, name string) {
	for c, of := range f.watchers {
		if of == name {
			c <- fmt.Sprintf(`{"type":%q,"object":%s}`, event, must.Get(json.Marshal(f.leases[name]))(f.t))
		}
	}
}

func (f *fakeServer) watch(w http.ResponseWriter, r *http.Request, name string) {
	events := make(chan string, 1000)
	f.mu.Lock()
	f.watchers[events] = name
	if f.leases[name] != nil {
		f.tell("ADDED", name)
	}
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.watchers, events)
	}()
	w.WriteHeader(http.StatusOK)
	for {
		w.(http.Flusher).Flush()
		select {
		case e := <-events:
			if e == "" {
				return
			}
			io.WriteString(w, e+"\n")
		case <-r.Context().Done():
			return
		}
	}
}

// gets returns how many requests read.
func (f *fakeServer) gets() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.requests {
		if strings.HasPrefix(r, "GET ") {
			n++
		}
	}
	return n
}

// endWatches ends all streams, after one last event.
func (f *fakeServer) endWatches(last string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.watchers {
		c <- last
		c <- ""
	}
}
