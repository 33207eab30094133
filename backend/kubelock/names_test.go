package kubelock

import (
	"crypto/sha256"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/distlock/distlock/internal/testkit/expect"
)

// subdomain is what Kubernetes wants of a Lease's name.
var subdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

func TestNames(t *testing.T) {
	for name, want := range map[string]string{
		"controller":      "controller",
		"a.b-c--d.0":      "a.b-c--d.0",
		"orders/555":      "orders0x2f555",
		"Orders":          "0x4frders",
		"0x2f":            "0x30x2f",
		"-a-.b.":          "0x2da0x2d0x2eb0x2e",
		"..":              "0x2e0x2e",
		"é":               "0xc30xa9",
		long("a", 253):    long("a", 253),
		long("a", 254):    long("a", 186) + "0xx",
		long("/", 100):    long("0x2f", 46) + "0xx",
		long("a-", 2_000): long("a-", 93) + "0xx",
	} {
		got := names.Encode(name)
		if !strings.HasPrefix(got, want) || !strings.HasSuffix(want, "xx") && got != want {
			t.Errorf("%.20q became %q, want %q", name, got, want)
		}
	}
}

func long(of string, n int) string { return strings.Repeat(of, n) }

// decoded returns the name of which encoded is, if that is not cut.
func decoded(encoded string) string {
	var b strings.Builder
	for i := 0; i < len(encoded); i++ {
		if strings.HasPrefix(encoded[i:], "0x") {
			c, _ := strconv.ParseUint(encoded[i+2:i+4], 16, 8)
			b.WriteByte(byte(c))
			i += 3
			continue
		}
		b.WriteByte(encoded[i])
	}
	return b.String()
}

// No two names have one Lease, and each is one that Kubernetes takes.
func TestNamesAreApart(t *testing.T) {
	pieces := []string{"0", "x", "0x", "xx", "2", "f", "a", ".", "-", "/", "A", "é", " ", "0x2f", "0xx", long("b", 80), long("/", 40)}
	cut := map[string]string{}
	for range 10_000 {
		var name string
		for range 1 + rand.IntN(8) {
			name += pieces[rand.IntN(len(pieces))]
		}
		got := names.Encode(name)
		if !subdomain.MatchString(got) || len(got) > names.Room {
			t.Fatalf("%q became %q", name, got)
		}
		if i := len(got) - len("0xx") - 2*sha256.Size; i >= 0 && strings.HasPrefix(got[i:], "0xx") {
			if was, ok := cut[got]; ok && was != name {
				t.Fatalf("%q and %q are both %q", was, name, got)
			}
			cut[got] = name
			if !strings.HasPrefix(name, decoded(got[:i])) {
				t.Fatalf("%q became %q, which does not begin like it", name, got)
			}
			continue
		}
		expect.Equal(t, decoded(got), name)
	}
	if len(cut) < 100 {
		t.Errorf("only %d names were too long", len(cut))
	}
}
