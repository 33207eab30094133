package driver_test

import (
	"strings"
	"testing"

	"github.com/distlock/distlock/driver"
)

func TestQuoteCutsLongNames(t *testing.T) {
	long := strings.Repeat("x", 98)
	for name, want := range map[string]string{
		"":           `""`,
		"a \"b\"\n":  `"a \"b\"\n"`,
		long + "yz":  `"` + long + `yz"`,
		long + "yza": `"` + long + `yz…" (101 bytes)`,
		long + "y€":  `"` + long + `y…" (102 bytes)`, // and no half of a character
	} {
		if got := driver.Quote(name); got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
	if broken := strings.Repeat("\x80", 1<<20); len(driver.Quote(broken)) > 500 {
		t.Errorf("not UTF-8: %d bytes", len(driver.Quote(broken)))
	}
}
