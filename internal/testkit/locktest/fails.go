package locktest

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/distlock/distlock/driver"
)

// OpenFails opens a URL in vain; see Fails.
func OpenFails[B driver.Backend](t testing.TB, open func(context.Context, string) (B, error), url string, final bool, words ...string) {
	t.Helper()
	b, err := open(t.Context(), url)
	if err == nil {
		b.Close()
	}
	Fails(t, url, err, final, words...)
}

// Fails wants an error with all these words: ErrInvalid, or one that is not final.
func Fails(t testing.TB, what string, err error, final bool, words ...string) {
	t.Helper()
	if err == nil || errors.Is(err, driver.ErrInvalid) != final || driver.Final(err) && !final {
		t.Errorf("%s: %v; want an error that is final: %v", what, err, final)
	}
	Says(t, err, words...)
}

// Says wants an error with all these words, and without the passwords of tests: hunter2, s3cret, and what begins so.
func Says(t testing.TB, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error; want %q", words)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%v\nlacks %q", err, w)
		}
	}
	if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("%v\nshows the password", err)
	}
}
