package sqlname_test

import (
	"testing"

	"github.com/distlock/distlock/internal/sqlname"
	"github.com/distlock/distlock/internal/testkit/expect"
)

func TestValid(t *testing.T) {
	for _, name := range []string{"a", "_", "Locks_2", "z9", "AZ"} {
		if !sqlname.Valid(name) {
			t.Errorf("%q is refused", name)
		}
	}
	for _, name := range []string{"", "2", "2a", "a.b", "a b", "a-b", "a`", `a"`, "a'", "a\n", "ä", "a\x00", "a\xff", "a;", "[", "@", "{", "/", ":"} {
		if sqlname.Valid(name) {
			t.Errorf("%q is accepted", name)
		}
	}
}

func TestQuote(t *testing.T) {
	for _, c := range []struct {
		name, want string
		mysql      bool
	}{
		{"locks", `"locks"`, false},
		{"app.locks", `"app"."locks"`, false},
		{"locks", "`locks`", true},
		{"app.locks", "`app`.`locks`", true},
	} {
		expect.Equal(t, sqlname.Quote(c.name, c.mysql), c.want, c.name)
	}
}
