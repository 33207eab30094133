package zklock

import (
	"fmt"
	"strings"
	"testing"

	"github.com/distlock/distlock/driver"
)

const someone = "0123abcd-4567-89ab-cdef-0123456789ab"

func TestNodes(t *testing.T) {
	for name, want := range map[string]string{
		"_c_" + someone + "-lock-0000000007":                  "1 0000000007 " + someone + " 0",
		"_c_" + someone + "-__READ__0000000007":               "2 0000000007 " + someone + " 0",
		"_c_" + someone + "-__WRIT__0000000007":               "3 0000000007 " + someone + " 0",
		"_c_" + someone + "-lease-0000000007":                 "4 0000000007 " + someone + " 0",
		"_c_" + someone + "-max12-lease-0000000007":           "4 0000000007 " + someone + " 12",
		"_c_0123abcd456789abcdef0123456789ab-lock-0000000007": "1 0000000007 _c_0123abcd456789abcdef0123456789ab-lock-0000000007 0",
		"lock-lock-0000000001":                                "1 0000000001 lock-lock-0000000001 0",
		"_c_" + someone + "-latch-0000000007":                 "5 0000000007 " + someone + " 0",
		"deadbeefdeadbeefdeadbeefdeadbeef__lock__0000000003":  "5 0000000003 deadbeefdeadbeefdeadbeefdeadbeef__lock__0000000003 0",
		"_c_" + someone + "-lock--2147483648":                 "1 -2147483648 " + someone + " 0",
		"_c_" + someone + "-lock--000000005":                  "1 -000000005 " + someone + " 0",
		"config":                                              "none",
		"lock-7":                                              "none",
		"lock-00000000071":                                    "none",
		"locks":                                               "none",
		"0000000001":                                          "none",
		"_c_" + someone + "-lock-":                            "none",
		"_c_" + someone + "-lock-00000x0000":                  "none",
	} {
		n, ok := parseNode(name)
		got := fmt.Sprint(n.kind, " ", n.key, " ", n.owner, " ", n.limit)
		if !ok {
			got = "none"
		}
		if got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

func TestOrderIsThatOfTheNumbersAsText(t *testing.T) {
	f := readFamily([]string{
		"_c_b-__WRIT__0000000010", "config", "_c_a-__READ__0000000009", "_c_c-__WRIT__-000000001", "locks", "leases",
	})
	var got []string
	for _, n := range f.row {
		got = append(got, n.key)
	}
	if strings.Join(got, " ") != "-000000001 0000000009 0000000010" || !f.locks || !f.leases {
		t.Errorf("%q, %+v", got, f)
	}
	for key, used := range map[string]bool{"-000000001": true, "2146435072": true, "2146435071": false, "0000000000": false} {
		if (node{key: key}).usedUp() != used {
			t.Errorf("%s is used up: %v", key, !used)
		}
	}
}

// line makes nodes of r, w and m (reader, writer, mutex) with numbers from 1 on. A
// capital R is a writer that has become a reader, with the number of the one before it.
func line(kinds string) row {
	var names []string
	number := 0
	for i, k := range kinds {
		base := map[rune]string{'r': "__READ__", 'R': "__READ__", 'w': "__WRIT__", 'm': "lock-"}[k]
		if k != 'R' {
			number++
		}
		names = append(names, fmt.Sprintf("_c_%d-%s%010d", i, base, number))
	}
	return readFamily(names).row
}

func TestWhoIsInTheWay(t *testing.T) {
	for _, c := range []struct {
		kinds string
		me    int
		mode  driver.Mode
		want  int // -1: nobody
	}{
		{"mmm", 0, driver.Exclusive, -1}, {"mmm", 2, driver.Exclusive, 1}, {"mmm", 3, driver.Exclusive, 2}, {"", 0, driver.Exclusive, -1},
		{"rrw", 2, driver.Write, 1}, {"wrr", 0, driver.Write, -1}, {"rrr", 2, driver.Read, -1}, {"wrwrr", 4, driver.Read, 2}, {"wrwrr", 1, driver.Read, 0},
		{"rw", 2, driver.Read, 1}, {"rr", 2, driver.Read, -1}, {"rr", 2, driver.Write, 1},
		{"wRw", 2, driver.Write, 1}, {"wRr", 0, driver.Read, -1}, {"wRr", 2, driver.Read, 0}, {"Rr", 1, driver.Read, -1},
	} {
		r := line(c.kinds)
		got := -1
		if n, is := r.blocker(c.me, kindOf(c.mode)); is {
			got = r.index(n.name)
		}
		if got != c.want {
			t.Errorf("%s: number %d as %v waits for %d, want %d", c.kinds, c.me, c.mode, got, c.want)
		}
	}
}

func TestWhoWaits(t *testing.T) {
	for _, c := range []struct {
		kinds string
		me    int
		mode  driver.Mode
		want  bool
	}{
		{"m", 0, driver.Exclusive, false}, {"mm", 0, driver.Exclusive, true}, {"wr", 0, driver.Write, true},
		{"rr", 0, driver.Read, false}, {"rrw", 0, driver.Read, true},
	} {
		if got := line(c.kinds).waits(c.me, kindOf(c.mode)); got != c.want {
			t.Errorf("%s: somebody waits for number %d: %v", c.kinds, c.me, got)
		}
	}
}

func TestNotes(t *testing.T) {
	java, _ := parseNode("_c_" + someone + "-lock-0000000001")
	peer, _ := parseNode("_c_0123abcd456789abcdef0123456789ab-lock-0000000001")
	for _, c := range []struct {
		n    node
		data string
		want string
	}{
		{java, string(writeNote(map[string]string{"a": "b\n\"é🔒"}, true)), `map[a:b` + "\n" + `"é🔒] true`},
		{java, string(writeNote(nil, false)), "map[] false"},
		{java, "10.0.0.1", "map[host:10.0.0.1] false"}, {java, "", "map[] true"}, {peer, "", "map[] false"},
		{java, revokeData, "map[] true"}, {java, "{\"json\": 1}", "map[] false"}, {java, "\x00\x01", "map[] false"}, {java, "worker 7", "map[host:worker 7] false"},
	} {
		note := readNote(c.n, []byte(c.data))
		if got := fmt.Sprint(note.Meta, " ", note.Revocable); got != c.want {
			t.Errorf("%q says %s, want %s", c.data, got, c.want)
		}
	}
}
