package zklock

import (
	"strings"
	"testing"
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
			t.Errorf("%s is called %q, and that is at %s", path, name, pathOf(name))
		}
	}
}

// FuzzPaths: each name has a path of its own, which is one.
func FuzzPaths(f *testing.F) {
	for _, seed := range []string{"a/b", "a//", "%25%", "a/_c_x-lock-0000000001", "../..", "é\x7f🔒"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if strings.Contains(name, "\x00") {
			return // no name has it
		}
		path := pathOf(name)
		if got, ok := nameOf(path); !ok || got != name {
			t.Errorf("%q is at %q, which is called %q (%v)", name, path, got, ok)
		}
		for i, segment := range strings.Split(path, "/")[1:] {
			odd := segment == "" || segment == "." || segment == ".." || escapeRunes(segment, "") != segment && !strings.Contains(segment, "%")
			if odd || i > 0 && isOurs(segment) {
				t.Errorf("%q is at %q", name, path)
			}
		}
	})
}
