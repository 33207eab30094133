package cli

import (
	"strings"
	"testing"

	"github.com/distlock/distlock/internal/testkit/must"
)

func TestTableOfWideCharacters(t *testing.T) {
	var tab table
	tab.add("NAME", "MODE")
	tab.add("订单:555", "exclusive")
	tab.add("cafe\u0301", "read")
	tab.add("ｗide", "read")
	var b strings.Builder
	must.OK(t, tab.write(&b))
	want := "NAME      MODE\n订单:555  exclusive\ncafe\u0301      read\nｗide     read\n"
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}

func TestNoticeOfWideCharactersFitsTheTerminal(t *testing.T) {
	for _, test := range []struct {
		line  string
		width int
		want  string
	}{
		{"abcdef", 6, "abcdef"}, {"abcdef", 5, "abcd…"}, {"订单订单", 8, "订单订单"}, {"订单订单", 7, "订单订…"}, {"订单订单", 6, "订单…"},
	} {
		if got := truncate(test.line, test.width); got != test.want {
			t.Errorf("%q in %d columns: got %q; want %q", test.line, test.width, got, test.want)
		}
	}
}
