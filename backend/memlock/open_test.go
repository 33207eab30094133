package memlock

import (
	"errors"
	"strings"
	"testing"

	"github.com/distlock/distlock/driver"
)

func open(t *testing.T, url string) driver.Backend {
	t.Helper()
	b, err := driver.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Connections to mem:NAME share a store, those to mem: don't.
func TestOpen(t *testing.T) {
	for _, c := range []struct {
		one, two string
		shared   bool
	}{
		{"mem:", "mem:", false},
		{"mem:jobs", "mem:jobs", true},
		{"mem:jobs", "mem:Jobs", false},
		{"mem:team/a b", "mem:team/a%20b", true},
	} {
		one, two := open(t, c.one), open(t, c.two)
		r := request(driver.NewOwner())
		take(t, one, r)
		_, err := two.Acquire(t.Context(), request(r.Name))
		if errors.Is(err, driver.ErrHeld) != c.shared {
			t.Errorf("%s and %s: got %v, want shared %v", c.one, c.two, err, c.shared)
		}
		if same := one.Caps().Name == two.Caps().Name; same != c.shared {
			t.Errorf("%s and %s are named %q and %q", c.one, c.two, one.Caps().Name, two.Caps().Name)
		}
		one.Release(t.Context(), r.Hold)
	}
}

func TestOpenInvalid(t *testing.T) {
	for url, want := range map[string]string{
		"mem:jobs?ttl=5s":      `unknown parameter "ttl"`,
		"mem://localhost":      "want mem:",
		"mem:/jobs":            "want mem:",
		"mem:jobs#1":           "want mem:",
		"mem://user:secret@/x": "want mem:",
		"mem:%zz":              "URL",
	} {
		_, err := driver.Open(t.Context(), url)
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", url, err)
		}
	}
}
