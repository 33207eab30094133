package nameclass

import (
	"fmt"
	"testing"

	"github.com/distlock/distlock/internal/testkit/expect"
)

func TestOf(t *testing.T) {
	for name, want := range map[string]string{
		"":                                       "",
		"nightly":                                "nightly",
		"order:5138":                             "order:*",
		"order:5138:refund":                      "order:*:refund",
		"order/00ff17ab/x":                       "order/*/x",
		"cafe:beef:deadbeef":                     "cafe:beef:deadbeef", // words
		"v2/deploy":                              "v2/deploy",
		"tmp-7":                                  "tmp-*",
		"user_9f86d081884c":                      "user_*",
		"shop{77}:stock":                         "shop{*}:stock",
		"订单:5138":                                "订单:*",
		"5138":                                   "*",
		"a 123e4567-e89b-12d3-a456-426614174000": "a *",
		"123e4567-e89b-12d3-a456-426614174000/run": "*/run",
		"123e4567-e89b-12d3-a456-4266141740001":    "*-e89b-12d3-a456-*", // 37 characters are no UUID
		"a::1:":                                    "a::*:",
	} {
		if got := Of(name); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}

// Classes are bounded; those that are known stay.
func TestClassesAreBounded(t *testing.T) {
	c := New(func(name string) string { return name })
	for i := range Most {
		if name := fmt.Sprint("class ", i); c.Of(name) != name {
			t.Errorf("%s: got %s", name, c.Of(name))
		}
	}
	expect.Equal(t, c.Of("one more"), Other, "one more")
	expect.Equal(t, c.Of("class 7"), "class 7", "known")
}
