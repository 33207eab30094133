package expect

import (
	"errors"
	"fmt"
	"io"
	"testing"
)

// recorder is a test that notes its failures.
type recorder struct {
	testing.TB
	says string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) { r.says = fmt.Sprintf(format, args...) }

func TestBe(t *testing.T) {
	for _, c := range []struct {
		err, want error
		says      string
	}{
		{nil, nil, ""},
		{fmt.Errorf("wrapped: %w", io.EOF), io.EOF, ""},
		{io.EOF, nil, "row: 7: EOF"},
		{nil, io.EOF, "row: 7: <nil>; want EOF"},
		{errors.New("another"), io.EOF, "row: 7: another; want EOF"},
	} {
		r := &recorder{}
		if ok := Be(r, c.err, c.want, "row", 7); ok != (c.says == "") || r.says != c.says {
			t.Errorf("%v for %v: %v, %q; want %q", c.err, c.want, ok, r.says, c.says)
		}
	}
}

func TestEqual(t *testing.T) {
	r := &recorder{}
	if !Equal(r, 7, 3+4, "row") || r.says != "" {
		t.Errorf("equal: %q", r.says)
	}
	if Equal(r, 7, 8, "row", 1) || r.says != "row: 1: 7; want 8" {
		t.Errorf("numbers: %q", r.says)
	}
	if Equal(r, "a", "b") || r.says != `"a"; want "b"` {
		t.Errorf("texts: %q", r.says)
	}
}
