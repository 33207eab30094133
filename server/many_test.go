package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// manyOf is the body of many calls, such as acquire and a hold.
func manyOf(opsAndHolds ...string) string {
	var all []string
	for i := 0; i < len(opsAndHolds); i += 2 {
		all = append(all, fmt.Sprintf(`{%q:%s}`, opsAndHolds[i], opsAndHolds[i+1]))
	}
	return `{"calls":[` + strings.Join(all, ",") + `]}`
}

// outcomes returns the lines of an answer in the order of the calls.
func outcomes(t *testing.T, text string, n int) []httpwire.Called {
	t.Helper()
	all := make([]httpwire.Called, n)
	lines := strings.Split(strings.TrimSpace(text), "\n")
	expect.Equal(t, len(lines), n, "lines")
	for _, line := range lines {
		var c httpwire.Called
		must.OK(t, json.Unmarshal([]byte(line), &c))
		all[c.Index] = c
	}
	return all
}

// Each of many calls gets what it would get alone.
func TestManyCalls(t *testing.T) {
	t.Parallel()
	access := tokens(t, "me sha256:"+HashToken("t")+" lock a/\n")
	r := start(t, memlock.New(), Options{Access: access, MaxHolds: 3})
	as := []string{"Authorization", "Bearer t"}
	r.wants(200, "", "POST", "/v1/acquire", hold("a/held", ownerA), as...)
	r.wants(200, "", "POST", "/v1/acquire", hold("a/mine", ownerB), as...)
	body := manyOf("acquire", hold("a/held", driver.NewOwner()), "release", hold("a/mine", ownerB), "release", hold("a/other", ownerB),
		"acquire", hold("b/x", ownerB), "acquire", hold("a/x", "me"), "acquire", hold("", ownerB))
	body = strings.TrimSuffix(body, "]}") + `,{},{"acquire":` + hold("a/x", ownerB) + `,"release":` + hold("a/x", ownerB) + `}]}`
	var got []string
	for _, c := range outcomes(t, r.wants(200, "", "POST", "/v1/calls", body, as...), 8) {
		got = append(got, string(c.Outcome))
		if (c.Problem == nil) != (c.Outcome == httpwire.OK) || c.Problem != nil && c.Problem.Kind != c.Outcome || c.Grant != nil {
			t.Errorf("%+v", c)
		}
	}
	expect.Equal(t, strings.Join(got, " "), "held ok lost denied invalid invalid invalid invalid")

	var calls []string
	for i := range 4 {
		calls = append(calls, "acquire", hold(fmt.Sprint("a/new", i), driver.NewOwner()))
	}
	granted, unsent := 0, 0
	for _, c := range outcomes(t, r.wants(200, "", "POST", "/v1/calls", manyOf(calls...), as...), 4) {
		switch {
		case c.Outcome == httpwire.OK && c.Grant != nil && c.Grant.Fence > 0 && c.Grant.TTL == 30_000:
			granted++
		case c.Outcome == httpwire.Unsent && c.Problem.Status == http.StatusTooManyRequests:
			unsent++
		}
	}
	expect.Equal(t, fmt.Sprint(granted, unsent), "2 2", "of three holds, with one that is held")

	r.wants(400, "want 1 to 256", "POST", "/v1/calls", `{"calls":[]}`, as...)
	r.wants(400, "want 1 to 256", "POST", "/v1/calls", `{"calls":[{}`+strings.Repeat(",{}", httpwire.MaxCalls)+`]}`, as...)
	r.wants(401, "", "POST", "/v1/calls", body)
	r.http.Close()
	log := r.log.String()
	for what, want := range map[string]int{
		`call="POST /v1/acquire"`: 2 + 6 + 4, `call="POST /v1/release"`: 2, `call="POST /v1/calls"`: 3, "lock=a/mine": 2, "status=423 outcome=held": 1, "status=204": 1,
	} {
		expect.Equal(t, strings.Count(log, what), want, what)
	}
}

// A call that waits does not hold up the answers to others.
func TestManyCallsAreAnsweredApart(t *testing.T) {
	t.Parallel()
	r := start(t, memlock.New(), Options{})
	r.wants(200, "", "POST", "/v1/acquire", hold("x", ownerA))
	body := manyOf("acquire", waiting("x", ownerB, 60_000), "acquire", hold("y", driver.NewOwner()))
	resp := must.Get(http.Post(r.http.URL+"/v1/calls", "application/json", strings.NewReader(body)))(t)
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	if !lines.Scan() || !strings.Contains(lines.Text(), `"index":1,"outcome":"ok"`) {
		t.Fatalf("%q, %v", lines.Text(), lines.Err())
	}
	r.await("x", 1)
	expect.Equal(t, r.s.quota.allStreams(), 1, "waits")
	r.wants(204, "", "POST", "/v1/release", hold("x", ownerA))
	if !lines.Scan() || !strings.Contains(lines.Text(), `"index":0,"outcome":"ok"`) {
		t.Fatalf("%q, %v", lines.Text(), lines.Err())
	}
	expect.Equal(t, lines.Scan(), false, "more lines")
}

// A client that goes ends its calls that wait.
func TestManyCallsOfOneThatGoes(t *testing.T) {
	t.Parallel()
	r := start(t, memlock.New(), Options{})
	r.wants(200, "", "POST", "/v1/acquire", hold("x", ownerA))
	ctx, cancel := context.WithCancel(t.Context())
	req := must.Get(http.NewRequestWithContext(ctx, "POST", r.http.URL+"/v1/calls", strings.NewReader(manyOf("acquire", waiting("x", ownerB, 60_000)))))(t)
	done := make(chan error, 1)
	go func() { _, err := http.DefaultClient.Do(req); done <- err }()
	r.await("x", 1)
	cancel()
	if <-done == nil {
		t.Error("it was answered")
	}
	must.OK(t, r.s.Drain(t.Context()))
	expect.Equal(t, r.s.quota.allStreams(), 0)
}

// broken panics for one name.
type broken struct{ *memlock.Backend }

func (b broken) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if r.Name == "bug" {
		panic("a bug")
	}
	return b.Backend.Acquire(ctx, r)
}

// A panic in one of many calls is logged, and harms no other call.
func TestManyCallsWithAPanic(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	r := start(t, broken{memlock.New()}, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	all := outcomes(t, r.wants(200, "", "POST", "/v1/calls", manyOf("acquire", hold("bug", ownerA), "acquire", hold("x", ownerB))), 2)
	expect.Equal(t, fmt.Sprint(all[0].Outcome, all[1].Outcome), "unknownok")
	r.http.Close()
	expect.Equal(t, strings.Contains(log.String(), "a bug in distlock"), true, "logged")
}

// A server that drains ends the calls that wait, and lets the others of the request be.
func TestManyCallsWhileTheServerDrains(t *testing.T) {
	t.Parallel()
	r := start(t, memlock.New(), Options{})
	r.wants(200, "", "POST", "/v1/acquire", hold("x", ownerA))
	body := manyOf("acquire", waiting("x", ownerB, 60_000), "acquire", hold("y", ownerA))
	resp := must.Get(http.Post(r.http.URL+"/v1/calls", "application/json", strings.NewReader(body)))(t)
	defer resp.Body.Close()
	r.await("x", 1)
	must.OK(t, r.s.Drain(t.Context()))
	text := must.Get(io.ReadAll(resp.Body))(t)
	all := outcomes(t, string(text), 2)
	expect.Equal(t, fmt.Sprint(all[0].Outcome, all[0].Problem.Status, all[1].Outcome), "unsent503ok")
	all = outcomes(t, r.wants(200, "", "POST", "/v1/calls", manyOf("acquire", hold("z", ownerB), "release", hold("y", ownerA))), 2)
	expect.Equal(t, fmt.Sprint(all[0].Outcome, all[1].Outcome), "unsentok", "holds are released still")
}

// A request whose text is wrong does nothing of what it asks for.
func TestManyCallsAllOrNone(t *testing.T) {
	t.Parallel()
	r := start(t, memlock.New(), Options{})
	good := `{"acquire":` + hold("x", ownerA) + `}`
	for want, body := range map[string]string{
		"want 1 to 256":       `{"calls":[` + good + strings.Repeat(`,{}`, 10_000) + `]}`,
		"described":           `{"calls":[` + good + `,{"renew":{}}]}`,
		"after the JSON":      `{"calls":[` + good + `]}{}`,
		"twice":               `{"calls":[` + good + `],"calls":[` + good + `]}`,
		"not UTF-8":           "{\"calls\":[" + good + ",{\"acquire\":{\"name\":\"\xff\"}}]}",
		"has more than 20971": `{"calls":[` + good + `,{"acquire":{"name":"` + strings.Repeat("n", httpwire.MaxRenewal) + `"}}]}`,
	} {
		status := 400
		if strings.HasPrefix(want, "has more") {
			status = 413
		}
		r.wants(status, want, "POST", "/v1/calls", body)
	}
	expect.Equal(t, r.s.quota.allHolds(), 0)
	long := outcomes(t, r.wants(200, "", "POST", "/v1/calls", manyOf("acquire", hold(strings.Repeat("n", httpwire.MaxName+1), ownerB), "acquire", hold("x", ownerA))), 2)
	expect.Equal(t, fmt.Sprint(long[0].Outcome, long[1].Outcome), "invalidok", "a name that is too long")
}
