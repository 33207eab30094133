package httpwire_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"unicode/utf8"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// requests are such as clients make.
func requests() []httpwire.Request {
	plain := httpwire.Hold{Name: "a/b", Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: 30_000}
	return []httpwire.Request{
		{},
		{Hold: plain, Fences: 1},
		{Hold: plain, Fences: 1, Meta: map[string]string{"pid": "7", "host": "h", "program": "p"}},
		{
			Hold:  httpwire.Hold{Name: "<b> & \"ü\\\u2028\n", Owner: "o", Mode: driver.Counted, TTL: 1, Floor: 1<<64 - 1, Fence: 1 << 63},
			Limit: 3, Fixed: true, Queue: true, Fences: 9, Meta: map[string]string{"": "<", "z": "\x00", "a": "ü"}, Revocable: true, MinHold: 5000, Wait: 60_000,
		},
	}
}

// What is written by hand is what encoding/json writes.
func TestAppend(t *testing.T) {
	t.Parallel()
	var w httpwire.MetaWriter
	for _, r := range append(requests(), requests()...) {
		expect.Equal(t, string(w.Request(&r)), string(must.Get(json.Marshal(r))(t)))
		expect.Equal(t, string(httpwire.WriteHold(&r.Hold)), string(must.Get(json.Marshal(r.Hold))(t)))
	}
	for _, c := range []httpwire.Called{
		{Index: 1, Outcome: httpwire.OK},
		{Index: 1 << 40, Outcome: httpwire.OK, Grant: &httpwire.Grant{}},
		{Index: 2, Outcome: httpwire.OK, Grant: &httpwire.Grant{Fence: 1<<63 - 1, Fences: 1, TTL: 30_000, Waited: 5}},
		{Index: 3, Outcome: httpwire.Held, Problem: &httpwire.Problem{Kind: httpwire.Held, Detail: "<>", Holders: []httpwire.Holder{{Mode: driver.Read}}}},
	} {
		text := httpwire.AppendCalled(nil, &c)
		expect.Equal(t, string(text), string(must.Get(json.Marshal(c))(t)))
		got, ok := httpwire.ReadCalled(text)
		expect.Equal(t, ok, c.Problem == nil)
		if ok && !reflect.DeepEqual(got, c) {
			t.Errorf("%s is read as %+v", text, got)
		}
	}
}

// The same meta is read once.
func TestMetaReader(t *testing.T) {
	t.Parallel()
	var m httpwire.MetaReader
	for _, text := range []string{`{"a":"b"}`, `{"a":"b"}`, `{"a":"b","c":"d"}`, `{"c":"d"}`, `{"c":"d"}`} {
		c, ok := m.ReadCall([]byte(`{"index":1,"acquire":{"meta":` + text + `,"name":"x"}}`))
		expect.Equal(t, ok, true)
		expect.Equal(t, string(must.Get(json.Marshal(c.Acquire.Meta))(t)), text)
	}
}

// FuzzReadCall: what is read by hand is what encoding/json reads, strictly.
func FuzzReadCall(f *testing.F) {
	var w httpwire.MetaWriter
	for i, r := range requests() {
		f.Add([]byte(`{"index":`+string(rune('1'+i))+`,"acquire":`+string(w.Request(&r))+`}`), []byte(`{"x":"y"}`))
		f.Add([]byte(`{"release":`+string(httpwire.WriteHold(&r.Hold))+`,"index":17}`), []byte(`{}`))
	}
	f.Add([]byte(`{"index":1,"leave":true}`), []byte(`{"a":"b"}`))
	f.Add([]byte(`{"index":1,"acquire":{"meta":{"a":"b"},"name":"x"}}`), []byte(`{"a":"b"}`))
	f.Add([]byte(`{"index":"ok","outcome":"ok","grant":{"fence":"01"}}`), []byte(`{"a":"b"`))
	f.Fuzz(func(t *testing.T, text, before []byte) {
		if !utf8.Valid(text) || !utf8.Valid(before) {
			return
		}
		var m httpwire.MetaReader
		m.ReadCall([]byte(`{"acquire":{"meta":` + string(before) + `}}`))
		if c, ok := m.ReadCall(text); ok {
			d := json.NewDecoder(bytes.NewReader(text))
			d.DisallowUnknownFields()
			var want httpwire.Call
			if err := d.Decode(&want); err != nil || !reflect.DeepEqual(c, want) {
				t.Errorf("%q is read as %+v: want %+v, %v", text, c, want, err)
			}
		}
		if c, ok := httpwire.ReadCalled(text); ok {
			var want httpwire.Called
			if err := json.Unmarshal(text, &want); err != nil || !reflect.DeepEqual(c, want) {
				t.Errorf("%q is read as %+v: want %+v, %v", text, c, want, err)
			}
		}
	})
}
