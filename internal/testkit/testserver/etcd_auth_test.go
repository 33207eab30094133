package testserver

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
)

// answering is an etcd that answers a call with each status in turn, and the last one from then on.
func answering(t *testing.T, text string, statuses ...int) *EtcdServer {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(statuses[0])
		w.Write([]byte(text))
		if len(statuses) > 1 {
			statuses = statuses[1:]
		}
	}))
	t.Cleanup(srv.Close)
	_, port, err := net.SplitHostPort(srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s := &EtcdServer{}
	if s.port, err = strconv.Atoi(port); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestUnansweredChangeIsRepeated(t *testing.T) {
	add := call{"user/add", body{"name": "ann"}}
	const exists = `{"error":"etcdserver: user name already exists"}`
	if err := answering(t, exists, http.StatusServiceUnavailable, http.StatusBadRequest).change("", add); err != nil {
		t.Errorf("the first attempt had succeeded: %v", err)
	}
	if err := answering(t, exists, http.StatusBadRequest).change("", add); err == nil || !strings.Contains(err.Error(), "already exists") {
		t.Errorf("the first answer: %v", err)
	}
	if err := answering(t, "{}", http.StatusServiceUnavailable, http.StatusOK).change("", add); err != nil {
		t.Errorf("the second attempt succeeds: %v", err)
	}
}
