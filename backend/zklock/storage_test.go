package zklock

import (
	"fmt"
	"strings"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
)

func TestPaths(t *testing.T) {
	for name, path := range map[string]string{
		"job": "/job", "orders/555": "/orders/555", "a:b {c} é": "/a:b {c} é", "100%": "/100%", "a%b": "/a%b",
		"": "/%00", "/a": "/%00/a", "a//b/": "/a/%00/b/%00", "a/./b": "/a/%2E/b", "..": "/%2E.",
		"a%2Fb": "/a%252Fb", "%%0A": "/%%250A", "a\nb": "/a%0Ab", "🔒": "/%F0%9F%94%92", "\ufffd": "/%EF%BF%BD",
		"locks": "/locks", "a/locks": "/a/%6Cocks", "a/leases": "/a/%6Ceases", "zookeeper": "/%7Aookeeper", "a/zookeeper": "/a/zookeeper",
		"a/lock-0000000001": "/a/%6Cock-0000000001", "lock-0000000001": "/lock-0000000001", "a/lock-1": "/a/lock-1",
		"a/__WRIT__0000000001": "/a/%5F%5FWRIT%5F%5F0000000001",
	} {
		if got := pathOf(name); got != path {
			t.Errorf("%q is at %s, want %s", name, got, path)
		}
		if got, ok := nameOf(path); !ok || got != name {
			t.Errorf("%s is called %q (%v), want %q", path, got, ok, name)
		}
	}
	for _, path := range []string{"a", "/a%41", "/a/locks", "/a%2Fb", "/zookeeper"} {
		if name, ok := nameOf(path); ok {
			t.Errorf("%s is called %q, whose path is %s", path, name, pathOf(name))
		}
	}
}

// FuzzPaths checks that each name has a valid path of its own.
func FuzzPaths(f *testing.F) {
	for _, seed := range []string{"a/b", "a//", "%25%", "a/_c_x-lock-0000000001", "../..", "é\x7f🔒"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if strings.Contains(name, "\x00") {
			return // not valid in a name
		}
		path := pathOf(name)
		if got, ok := nameOf(path); !ok || got != name {
			t.Errorf("%q is at %q, which is called %q (%v)", name, path, got, ok)
		}
		for i, segment := range strings.Split(path, "/")[1:] {
			odd := segment == "" || segment == "." || segment == ".." || escapeRunes(segment, "") != segment && !strings.Contains(segment, "%")
			if odd || i > 0 && isLockNode(segment) {
				t.Errorf("%q is at %q", name, path)
			}
		}
	})
}

const someone = "0123abcd-4567-89ab-cdef-0123456789ab"

func TestNodes(t *testing.T) {
	for name, want := range map[string]string{
		"_c_" + someone + "-lock-0000000007":                  "exclusive 0000000007 " + someone + " 0",
		"_c_" + someone + "-__READ__0000000007":               "read 0000000007 " + someone + " 0",
		"_c_" + someone + "-__WRIT__0000000007":               "write 0000000007 " + someone + " 0",
		"_c_" + someone + "-lease-0000000007":                 "counted 0000000007 " + someone + " 0",
		"_c_" + someone + "-max12-lease-0000000007":           "counted 0000000007 " + someone + " 12",
		"_c_0123abcd456789abcdef0123456789ab-lock-0000000007": "exclusive 0000000007 _c_0123abcd456789abcdef0123456789ab-lock-0000000007 0",
		"lock-lock-0000000001":                                "exclusive 0000000001 lock-lock-0000000001 0",
		"_c_" + someone + "-latch-0000000007":                 "invalid 0000000007 " + someone + " 0",
		"deadbeefdeadbeefdeadbeefdeadbeef__lock__0000000003":  "invalid 0000000003 deadbeefdeadbeefdeadbeefdeadbeef__lock__0000000003 0",
		"_c_" + someone + "-lock--2147483648":                 "exclusive -2147483648 " + someone + " 0",
		"_c_" + someone + "-lock--000000005":                  "exclusive -000000005 " + someone + " 0",
		"config":                                              "none",
		"lock-7":                                              "none",
		"lock-00000000071":                                    "none",
		"locks":                                               "none",
		"0000000001":                                          "none",
		"_c_" + someone + "-lock-":                            "none",
		"_c_" + someone + "-lock-00000x0000":                  "none",
	} {
		n, ok := parseNode(name)
		got := fmt.Sprint(n.mode, " ", n.seq, " ", n.owner, " ", n.limit)
		if !ok {
			got = "none"
		}
		expect.Equal(t, got, want, name)
	}
}

func TestNodesAreSortedByTheirNumbersAsText(t *testing.T) {
	f := readListing([]string{
		"_c_b-__WRIT__0000000010", "config", "_c_a-__READ__0000000009", "_c_c-__WRIT__-000000001", "locks", "leases",
	})
	var got []string
	for _, n := range f.nodes {
		got = append(got, n.seq)
	}
	if strings.Join(got, " ") != "-000000001 0000000009 0000000010" || !f.hasLocks || !f.hasLeases {
		t.Errorf("%q, %+v", got, f)
	}
	for key, used := range map[string]bool{"-000000001": true, "2146435072": true, "2146435071": false, "0000000000": false} {
		if (node{seq: key}).exhausted() != used {
			t.Errorf("%s is exhausted: %v", key, !used)
		}
	}
}

// line makes nodes of r, w and m (reader, writer, mutex) with numbers from 1 on. R is a writer that
// became a reader, with the number of the node before it.
func line(kinds string) nodeList {
	var names []string
	number := 0
	for i, k := range kinds {
		base := map[rune]string{'r': "__READ__", 'R': "__READ__", 'w': "__WRIT__", 'm': "lock-"}[k]
		if k != 'R' {
			number++
		}
		names = append(names, fmt.Sprintf("_c_%d-%s%010d", i, base, number))
	}
	return readListing(names).nodes
}

func TestBlocker(t *testing.T) {
	for _, c := range []struct {
		kinds string
		me    int
		mode  driver.Mode
		want  int // -1: none
	}{
		{"mmm", 0, driver.Exclusive, -1}, {"mmm", 2, driver.Exclusive, 1}, {"mmm", 3, driver.Exclusive, 2}, {"", 0, driver.Exclusive, -1},
		{"rrw", 2, driver.Write, 1}, {"wrr", 0, driver.Write, -1}, {"rrr", 2, driver.Read, -1}, {"wrwrr", 4, driver.Read, 2}, {"wrwrr", 1, driver.Read, 0},
		{"rw", 2, driver.Read, 1}, {"rr", 2, driver.Read, -1}, {"rr", 2, driver.Write, 1},
		{"wRw", 2, driver.Write, 1}, {"wRr", 0, driver.Read, -1}, {"wRr", 2, driver.Read, 0}, {"Rr", 1, driver.Read, -1},
	} {
		r := line(c.kinds)
		got := -1
		if n, is := r.blocker(c.me, c.mode); is {
			got = r.index(n.name)
		}
		if got != c.want {
			t.Errorf("%s: number %d as %v waits for %d, want %d", c.kinds, c.me, c.mode, got, c.want)
		}
	}
}

func TestNodeData(t *testing.T) {
	java, _ := parseNode("_c_" + someone + "-lock-0000000001")
	peer, _ := parseNode("_c_0123abcd456789abcdef0123456789ab-lock-0000000001")
	permit, _ := parseNode("_c_" + someone + "-lease-0000000001")
	for _, c := range []struct {
		n    node
		data string
		want string
	}{
		{java, string(encodeData(`{"a":"b\n\"é🔒"}`, true)), `map[a:b` + "\n" + `"é🔒] true`},
		{java, string(encodeData(`{"a":"b"}`, false)), "map[a:b] false"},
		{java, string(encodeData("", true)), "map[] true"},
		{java, string(encodeData("", false)), "map[] false"},
		{java, "10.0.0.1", "map[host:10.0.0.1] false"}, {java, "", "map[] true"}, {peer, "", "map[] false"}, {permit, "", "map[] false"},
		{java, revokeData, "map[] true"}, {java, "{\"json\": 1}", "map[] false"}, {java, "\x00\x01", "map[] false"}, {java, "worker 7", "map[host:worker 7] false"},
	} {
		note := decodeData(c.n, []byte(c.data))
		if got := fmt.Sprint(note.Meta, " ", note.Revocable); got != c.want {
			t.Errorf("%q says %s, want %s", c.data, got, c.want)
		}
	}
}
