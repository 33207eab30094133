package page

import (
	"net/http"
	"testing"
)

func TestLanguage(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]int{"": 0, "de, fr;q=0.5": 0, "zh-Hans-CN": 1, "en;q=0.5, zh-TW;q=0.8": 1, "zh;q=0.2,en;q=0.9": 0, "*": 0, ";;q=x,": 0} {
		r := &http.Request{Header: http.Header{"Accept-Language": {header}}}
		if got := Language(r); got != want {
			t.Errorf("%q: %d", header, got)
		}
	}
}
