package s3lock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/record"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestKeys(t *testing.T) {
	for name, want := range map[string]string{
		"job":      "job",
		"Job_1-a":  "Job_1-a",
		"v1.2":     "v1.2",
		".":        "!2E",
		"..":       "!2E.",
		"a/b":      "a!2Fb",
		"a!2Fb":    "a!212Fb",
		"é":        "!C3!A9",
		"a b%~\n+": "a!20b!25!7E!0A!2B",
	} {
		expect.Equal(t, keys.Encode(name), want)
	}
}

// Keys are short, differ, and begin with that of a prefix.
func TestKeysOfAllNames(t *testing.T) {
	pieces := []string{"a", "Z", "0", "-", "_", ".", "..", "!", "!h", "!2F", "/", "%", " ", "\n", "é", "🔒", strings.Repeat("x", 199), strings.Repeat("/", 67)}
	seen := map[string]string{}
	random := rand.New(rand.NewPCG(1, 1))
	for range 4_000 {
		var name string
		for range 1 + random.IntN(8) {
			name += pieces[random.IntN(len(pieces))]
		}
		key := keys.Encode(name)
		if other, ok := seen[key]; ok && other != name {
			t.Fatalf("%q and %q have the key %q", name, other, key)
		}
		seen[key] = name
		if len(key) > keyRoom || strings.ContainsAny(key, "/%\\ ") || strings.HasPrefix(key, ".") || strings.HasPrefix(key, probeMark) {
			t.Fatalf("%q has the key %q", name, key)
		}
		if prefix := name[:random.IntN(len(name)+1)]; !strings.HasPrefix(key, keys.Prefix(prefix)) {
			t.Fatalf("%q begins with %q, and %q not with %q", name, prefix, key, keys.Prefix(prefix))
		}
	}
}

// List finds names of each kind among other objects, over several pages, and only those that are held.
func TestListFindsNames(t *testing.T) {
	f := newFake()
	b := connect(t, f.serve(t))
	another := []byte(`{"distlock":1,"name":"another"}`)
	f.set(func() {
		f.objects["locks/report.csv"] = stored{`"1-2"`, []byte("a,b\n")}
		f.objects["locks/a!2Fb"] = stored{hashOf(another), another}
		f.objects["locks/"+probeMark+"x"] = stored{`"3"`, []byte("1")}
		f.objects["other/job"] = stored{`"4"`, []byte(`{"distlock":1,"name":"job","holder":"x"}`)}
	})
	var want []string
	for i := range 30 {
		want = append(want, fmt.Sprintf("a/%02d é %s", i, strings.Repeat("z", i*30)))
	}
	for _, name := range append(want, "b/free") {
		locktest.Acquire(t, b, request(name))
	}
	r := request("a/free")
	locktest.Acquire(t, b, r)
	locktest.Release(t, b, r)
	var got []string
	list := b.(driver.Inspector)
	expect.OK(t, list.List(context.Background(), "a/", func(name string) bool { got = append(got, name); return true }))
	slices.Sort(got)
	expect.Equal(t, strings.Join(got, "\n"), strings.Join(want, "\n"))
	got = nil
	expect.OK(t, list.List(context.Background(), want[20][:300], func(name string) bool { got = append(got, name); return true }))
	expect.Equal(t, strings.Join(got, "\n"), want[20], "by a long prefix")
}

// List gets hardly more objects than it yields names.
func TestListGetsFew(t *testing.T) {
	f := newFake()
	b := connect(t, f.serve(t))
	for i := range 30 {
		locktest.Acquire(t, b, request(fmt.Sprint(i)))
	}
	f.requests()
	expect.OK(t, b.(driver.Inspector).List(t.Context(), "", func(string) bool { return false }))
	if n := f.requests()[http.MethodGet]; n > record.AtOnce {
		t.Errorf("%d objects for one name", n)
	}
}

// A listing that is cut and does not go on is no endless one.
func TestListThatDoesNotGoOn(t *testing.T) {
	f := newFake()
	b := connect(t, f.serve(t))
	f.set(func() {
		f.instead = func(r *http.Request) *storeError {
			return &storeError{status: http.StatusOK, message: "</Message><IsTruncated>true</IsTruncated><Message>"}
		}
	})
	err := b.(driver.Inspector).List(t.Context(), "", func(string) bool { return true })
	if err == nil || driver.Final(err) {
		t.Errorf("List: %v", err)
	}
}

// What is no lock's object is neither overwritten nor read as one.
func TestForeignObjects(t *testing.T) {
	for what, body := range map[string]string{
		"text":             "a,b\n",
		"a newer version":  `{"distlock":2,"name":"job"}`,
		"another JSON":     `{"name":"job"}`,
		"another's record": `{"distlock":1,"name":"JOB"}`,
	} {
		t.Run(what, func(t *testing.T) {
			f := newFake()
			b := connect(t, f.serve(t))
			f.set(func() { f.objects["locks/job"] = stored{hashOf([]byte(body)), []byte(body)} })
			_, err := b.Acquire(t.Context(), request("job"))
			expect.Be(t, err, driver.ErrInvalid)
			expect.Equal(t, string(f.object("locks/job").body), body)
		})
	}
}

// A prefix may have any characters, in keys and in listings.
func TestPrefixes(t *testing.T) { prefixes(t, endpointOf(newFake().serve(t))) }

func TestLongPrefixesOnARealServer(t *testing.T) {
	prefixes(t, testserver.SharedS3(t).Endpoint())
}

func prefixes(t *testing.T, endpoint string) {
	for _, prefix := range []string{"", "/", "/a b+c%2Bd&e=f'(~)*!", "/é/日本/🔒", "/a:b@c;d,e$f[g]/h", "/%25%3F%23"} {
		b := connect(t, "s3://bucket"+prefix+"?endpoint="+url.QueryEscape(endpoint))
		r := request("a b+/é")
		locktest.Acquire(t, b, r)
		var got []string
		expect.OK(t, b.(driver.Inspector).List(t.Context(), "a b", func(name string) bool { got = append(got, name); return true }), prefix)
		expect.Equal(t, strings.Join(got, "\n"), r.Name, prefix)
		locktest.Release(t, b, r)
	}
}
