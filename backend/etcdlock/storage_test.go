package etcdlock

import (
	"strings"
	"testing"

	"github.com/distlock/distlock/driver"
)

// parseLetters makes a queue of letters: x exclusive, w write, r read; a digit is a permit with this limit.
func parseLetters(s string) lockQueue {
	var all lockQueue
	for i, c := range s {
		e := lockKey{key: s[:i+1], created: int64(i + 1), owner: s[:i+1]}
		switch c {
		case 'x':
			e.mode = driver.Exclusive
		case 'w':
			e.mode = driver.Write
		case 'r':
			e.mode = driver.Read
		default:
			e.mode, e.Limit = driver.Counted, int(c-'0')
		}
		all = append(all, e)
	}
	return all
}

func TestBlocker(t *testing.T) {
	for _, c := range []struct {
		ahead   string
		next    rune
		blocker int // in ahead; 0: let in
	}{
		{"", 'x', 0}, {"", 'w', 0}, {"", 'r', 0}, {"", '2', 0},
		{"x", 'x', 1}, {"xx", 'x', 2}, {"r", 'w', 1}, {"rr", 'w', 2}, {"w", 'w', 1},
		{"rrr", 'r', 0}, {"w", 'r', 1}, {"wr", 'r', 1}, {"rwr", 'r', 2}, {"wrwr", 'r', 3}, {"x", 'r', 1}, {"2", 'r', 1},
		{"2", '2', 0}, {"22", '2', 2}, {"222", '2', 3}, {"33", '3', 0}, {"3", '2', 1}, {"2x", '3', 2}, {"x2", '2', 1},
		{"2", 'r', 1}, {"r", '2', 1}, {"r2", 'r', 2}, {"2r", '2', 2}, {"r33", '3', 1}, {"r2", 'x', 2}, {"2r", 'w', 2},
	} {
		e := parseLetters(string(c.next))[0]
		got := 0
		if by := blocker(parseLetters(c.ahead), e.mode, e.Limit); by != nil {
			got = int(by.created)
		}
		if got != c.blocker {
			t.Errorf("%q behind %q is kept out by %d, want %d", c.next, c.ahead, got, c.blocker)
		}
	}
}

func TestHolderCount(t *testing.T) {
	for s, want := range map[string]int{
		"": 0, "x": 1, "xx": 1, "w": 1, "wr": 1, "r": 1, "rr": 2, "rrwr": 2, "22": 2, "222": 2, "333": 3, "2": 1, "x2": 1, "rx": 1, "r2r": 1, "2r2": 1, "wx": 1, "22r": 2,
	} {
		if got := parseLetters(s).holderCount(); got != want {
			t.Errorf("of %q %d hold, want %d", s, got, want)
		}
	}
}

func TestCheckLimit(t *testing.T) {
	for _, c := range []struct {
		ahead string
		next  rune
		want  string
	}{
		{"", '2', ""}, {"2", '2', ""}, {"x", '2', ""}, {"rw", '2', ""}, {"3", 'x', ""}, {"3", 'r', ""},
		{"3", '2', "in use with limit 3"}, {"x3", '2', "in use with limit 3"}, {"r3x", '2', "in use with limit 3"},
	} {
		e := parseLetters(string(c.next))[0]
		err := checkLimit(parseLetters(c.ahead), &driver.Request{Hold: driver.Hold{Mode: e.mode}, Limit: e.Limit})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q behind %q: %v, want %q", c.next, c.ahead, err, c.want)
		}
	}
}
