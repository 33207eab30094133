package redisconn

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
)

func refusal(text string) *ReplyError { return &ReplyError{Text: text} }

func TestReplies(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	for text, want := range map[string]any{
		"+OK\r\n":                              "OK",
		"+\r\n":                                "",
		"+a b\r\n":                             "a b",
		"-ERR no\r\n":                          refusal("ERR no"),
		":12\r\n":                              int64(12),
		":-9223372036854775808\r\n":            int64(-1 << 63),
		"$-1\r\n":                              nil,
		"*-1\r\n":                              nil,
		"$0\r\n\r\n":                           "",
		"$4\r\na\r\nb\r\n":                     "a\r\nb",
		"$100000\r\n" + long + "\r\n":          long,
		"*0\r\n":                               []any{},
		"*2\r\n*0\r\n*-1\r\n":                  []any{[]any{}, nil},
		"*3\r\n:1\r\n-ERR x\r\n$1\r\na\r\n":    []any{int64(1), refusal("ERR x"), "a"},
		"*2\r\n*2\r\n:1\r\n*1\r\n+a\r\n+b\r\n": []any{[]any{int64(1), []any{"a"}}, "b"},
	} {
		for how, src := range map[string]io.Reader{"at once": strings.NewReader(text + "+next\r\n"), "by bytes": iotest.OneByteReader(strings.NewReader(text + "+next\r\n"))} {
			r := newReader(src)
			for _, want := range []any{want, "next"} {
				if got, err := r.next(); err != nil || !reflect.DeepEqual(got, want) {
					t.Errorf("%.30q %s: %.50v, %v; want %.50v", text, how, got, err, want)
				}
			}
			if r.buffered() {
				t.Errorf("%.30q %s: something is left", text, how)
			}
		}
	}
}

// What is no reply, or larger than any should be, is an error that does not go away. It shows nothing of what a lock's key has.
func TestInvalidReplies(t *testing.T) {
	for _, text := range []string{
		"s3cret\r\n", "\r\n", "?\r\n", "%1\r\n", "+s3cret\n", "-\n", ":\r\n", ":s3cret\r\n", "$\r\n", "$-2\r\n", "*-2\r\n", ":1 \r\n",
		"$3\r\ns3cret\r\n", "$99999999999\r\n", "*99999999\r\n", "$99999999999999999999\r\n", "*1\r\n?\r\n",
		strings.Repeat("*1\r\n", maxNested+1), "+" + strings.Repeat("x", maxLine+1),
		"*1000000\r\n" + strings.Repeat("*1000000\r\n", 3) + strings.Repeat(":1\r\n", maxWords),
		"*9\r\n" + strings.Repeat(fmt.Sprintf("$%d\r\n%s\r\n", maxReply/8, strings.Repeat("x", maxReply/8)), 9),
	} {
		r := newReader(strings.NewReader(text))
		for range 2 {
			if got, err := r.next(); !errors.Is(err, errInvalidReply) || strings.Contains(err.Error(), "s3c") {
				t.Errorf("%.30q: %v, %v", text, got, err)
			}
		}
	}
}

// A length that a server names takes no memory before that much is there.
func TestNamedLengthsTakeNoMemory(t *testing.T) {
	for _, text := range []string{fmt.Sprintf("$%d\r\nx", maxReply), fmt.Sprintf("*%d\r\n", maxWords)} {
		r := newReader(strings.NewReader(text))
		if got, err := r.next(); err != io.EOF || cap(r.buf) > 10*readSize || len(r.begun) > 0 && cap(r.begun[0].items) > trustedLen {
			t.Errorf("%q: %v, %v; room for %d bytes", text, got, err, cap(r.buf))
		}
	}
}

// A read that ends by its deadline loses nothing.
func TestInterruptedReplies(t *testing.T) {
	text := "*3\r\n$5\r\nhello\r\n*1\r\n:7\r\n+OK\r\n"
	r := newReader(iotest.OneByteReader(iotest.TimeoutReader(strings.NewReader(text))))
	want := []any{"hello", []any{int64(7)}, "OK"}
	for {
		got, err := r.next()
		if errors.Is(err, iotest.ErrTimeout) {
			continue
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%v, %v", got, err)
		}
		return
	}
}

// However a stream is cut into reads, it has the same replies; and no stream is worse than an error.
func FuzzReplies(f *testing.F) {
	f.Add([]byte("*3\r\n$5\r\nhello\r\n*1\r\n:7\r\n+OK\r\n-ERR\r\n$-1\r\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		read := func(src io.Reader) (all []any, err error) {
			for r := newReader(src); ; {
				reply, err := r.next()
				if err != nil {
					return all, err
				}
				all = append(all, reply)
			}
		}
		one, err := read(bytes.NewReader(stream))
		two, err2 := read(iotest.OneByteReader(bytes.NewReader(stream)))
		if !reflect.DeepEqual(one, two) || errors.Is(err, errInvalidReply) != errors.Is(err2, errInvalidReply) {
			t.Errorf("%v, %v and %v, %v", one, err, two, err2)
		}
	})
}

func TestCommands(t *testing.T) {
	got := string(appendCommand(nil, []string{"SET", "", "a\r\nb"}))
	if want := "*3\r\n$3\r\nSET\r\n$0\r\n\r\n$4\r\na\r\nb\r\n"; got != want {
		t.Errorf("%q; want %q", got, want)
	}
}
