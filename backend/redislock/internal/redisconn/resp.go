package redisconn

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// The protocol is RESP2, which a server speaks until it is asked for another one.

// appendCommand appends a command as servers read it.
func appendCommand(b []byte, words []string) []byte {
	if len(words) > 100 { // a large buffer is not used again, and would grow many times
		size := 0
		for _, w := range words {
			size += len(w) + 10
		}
		b = slices.Grow(b, size)
	}
	b = appendCount(b, '*', len(words))
	for _, w := range words {
		b = appendCount(b, '$', len(w))
		b = append(append(b, w...), "\r\n"...)
	}
	return b
}

func appendCount(b []byte, kind byte, n int) []byte {
	return append(strconv.AppendInt(append(b, kind), int64(n), 10), "\r\n"...)
}

// Limits of a reply. What locks need is far smaller.
const (
	maxReply  = 64 << 20 // bytes
	maxWords  = 1 << 20
	maxLine   = 64 << 10
	maxNested = 16
)

const (
	readSize   = 16 << 10 // of the usual buffer
	trustedLen = 1024     // for which a list has room before its words are there
)

// errInvalidReply is in the error of a reply that is none, or larger than any should be. The connection is of no use then.
var errInvalidReply = errors.New("invalid reply")

// reader reads replies. If a read fails in the middle of a reply, the next call goes on there.
type reader struct {
	src    io.Reader
	buf    []byte
	at     int    // where in buf begins what was not read yet
	begun  []list // the lists that are not complete, each in the one before
	size   int    // bytes of the reply that were read
	words  int
	failed error // for good
}

// list is a part of a reply.
type list struct {
	items []any
	left  int
}

func newReader(src io.Reader) *reader { return &reader{src: src, buf: make([]byte, 0, readSize)} }

// buffered reports whether there is more than was read of replies.
func (r *reader) buffered() bool { return r.at < len(r.buf) }

// answer reads the next answer.
func (r *reader) answer() (Answer, error) {
	reply, err := r.next()
	if re, is := reply.(*ReplyError); is {
		return Answer{Err: re}, err
	}
	return Answer{Reply: reply}, err
}

// next returns the next reply. An error that the server answered is a *ReplyError in its place.
func (r *reader) next() (any, error) {
	for r.failed == nil {
		value, n, err := r.word(r.buf[r.at:])
		switch {
		case err != nil:
			r.failed = err
		case n > len(r.buf)-r.at:
			if err := r.fill(n); err != nil {
				return nil, err
			}
		default:
			r.at += n
			if _, begins := value.(list); !begins && len(r.begun) == 0 {
				return value, nil
			}
			if reply, whole := r.add(value, n); whole {
				return reply, nil
			}
		}
	}
	return nil, r.failed
}

// word reads a word, or the beginning of a list, of n bytes. If n is more than len(b), more is to be read first.
func (r *reader) word(b []byte) (value any, n int, err error) {
	end := bytes.IndexByte(b, '\n')
	switch {
	case len(b) > 0 && bytes.IndexByte([]byte("+-:$*"), b[0]) < 0:
		return nil, 0, fmt.Errorf("%w, which begins with %q", errInvalidReply, b[0])
	case end < 0 && len(b) > maxLine, end > maxLine:
		return nil, 0, fmt.Errorf("%w: a line of more than %d bytes", errInvalidReply, maxLine)
	case end < 0:
		return nil, len(b) + 1, nil
	case b[end-1] != '\r':
		return nil, 0, fmt.Errorf("%w: a line that does not end", errInvalidReply)
	}
	text, n := b[1:end-1], end+1
	switch b[0] {
	case '+':
		return string(text), n, nil
	case '-':
		return &ReplyError{Text: string(text)}, n, nil
	}
	number, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: a number that is none", errInvalidReply)
	}
	switch {
	case b[0] == ':':
		return number, n, nil
	case number == -1:
		return nil, n, nil
	case number < 0, b[0] == '$' && number > maxReply, number > maxWords && b[0] == '*':
		return nil, 0, fmt.Errorf("%w: a length of %d", errInvalidReply, number)
	case b[0] == '*':
		return list{left: int(number)}, n, nil
	}
	switch end = n + int(number); {
	case end+2 > len(b):
		return nil, end + 2, nil
	case b[end] != '\r' || b[end+1] != '\n':
		return nil, 0, fmt.Errorf("%w: a string that does not end", errInvalidReply)
	}
	return string(b[n:end]), end + 2, nil
}

// add takes a word of n bytes that is in a list, or begins one. It returns the reply if that is whole.
func (r *reader) add(value any, n int) (reply any, whole bool) {
	r.size += n
	if r.words++; r.size > maxReply || r.words > maxWords {
		r.failed = fmt.Errorf("%w: more than %d bytes, or %d words", errInvalidReply, maxReply, maxWords)
		return nil, false
	}
	if l, is := value.(list); is {
		l.items = make([]any, 0, min(l.left, trustedLen))
		if r.begun = append(r.begun, l); len(r.begun) > maxNested {
			r.failed = fmt.Errorf("%w: lists in lists", errInvalidReply)
			return nil, false
		}
		if l.left > 0 {
			return nil, false
		}
		value = r.end()
	}
	for len(r.begun) > 0 {
		l := &r.begun[len(r.begun)-1]
		l.items = append(l.items, value)
		if l.left--; l.left > 0 {
			return nil, false
		}
		value = r.end()
	}
	r.size, r.words = 0, 0
	return value, true
}

// end returns the items of the innermost list, which is complete.
func (r *reader) end() any {
	last := len(r.begun) - 1
	items := r.begun[last].items
	r.begun[last] = list{}
	r.begun = r.begun[:last]
	return items
}

// fill reads more, of which n bytes are known to be there. A server's word for that is not enough to take memory for it.
func (r *reader) fill(n int) error {
	r.buf, r.at = append(r.buf[:0], r.buf[r.at:]...), 0
	switch rest := len(r.buf); {
	case rest == 0 && cap(r.buf) > maxLine:
		r.buf = make([]byte, 0, readSize)
	case rest == cap(r.buf):
		r.buf = slices.Grow(r.buf, min(n, 2*rest))
	}
	got, err := r.src.Read(r.buf[len(r.buf):cap(r.buf)])
	r.buf = r.buf[:len(r.buf)+got]
	if got > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// Answer is the reply to a command, or its error.
type Answer struct {
	Reply any
	Err   error
}

// FailAll returns n answers that failed with err.
func FailAll(n int, err error) []Answer { return slices.Repeat([]Answer{{Err: err}}, n) }

// ReplyError is an error that the server answered.
type ReplyError struct {
	Text   string
	script bool // the place in a script was removed from Text
}

// Error leaves out what a server repeats of a command that it does not know: there may be a password or an Owner in it.
func (e *ReplyError) Error() string {
	text, _, _ := strings.Cut(e.Text, ", with args beginning with")
	return "redis: " + text
}

// AsReply returns the ReplyError in err, if there is one.
func AsReply(err error) (*ReplyError, bool) {
	if err == nil {
		return nil, false // most often, and without memory
	}
	re := (*ReplyError)(nil)
	is := errors.As(err, &re)
	return re, is
}

// HasCode reports whether the error has this code. Servers before 7.0 put the error of a script's
// command into the middle of the text.
func (e *ReplyError) HasCode(code string) bool {
	return strings.HasPrefix(e.Text, code+" ") || strings.Contains(e.Text, ": "+code+" ")
}

// UnknownCommand reports whether the server doesn't know the command, or its subcommand.
func (e *ReplyError) UnknownCommand() bool {
	text := strings.ToLower(e.Text) // Redis 6 begins it with a capital
	return e.HasCode("ERR") && (strings.Contains(text, "unknown command") || strings.Contains(text, "unknown subcommand") || strings.Contains(text, "unknown pubsub subcommand"))
}

// FirstError returns the first error in list, or nil.
func FirstError(list []Answer) error {
	for _, a := range list {
		if a.Err != nil {
			return a.Err
		}
	}
	return nil
}

// TransportError returns the first error that is not a server's answer, or nil.
func TransportError(list []Answer) error {
	for _, a := range list {
		if _, is := AsReply(a.Err); a.Err != nil && !is {
			return a.Err
		}
	}
	return nil
}

// Text returns a reply's string.
func Text(v any) string { s, _ := v.(string); return s }

// Integer returns a reply's number.
func Integer(v any) int64 { n, _ := v.(int64); return n }

// List returns a reply's list.
func List(v any) []any { list, _ := v.([]any); return list }

// Texts returns the strings of a list.
func Texts(v any) []string {
	list := List(v)
	words := make([]string, len(list))
	for i, w := range list {
		words[i] = Text(w)
	}
	return words
}

// ErrUnexpected is the error of a reply that has another form than the command's.
var ErrUnexpected = errors.New("unexpected answer")

// Expect fails the answers whose replies do not have the form of their commands': for each, a letter says which. An integer: i. A string, or
// none: s. A list, or none: l. The word OK, or none: o. What stands between us and a server may answer anything. It returns the first error.
func Expect(got []Answer, forms string) (first error) {
	for i := range got {
		fits := got[i].Reply == nil
		switch r := got[i].Reply.(type) {
		case int64:
			fits = forms[i] == 'i'
		case string:
			fits = forms[i] == 's' || forms[i] == 'o' && r == "OK"
		case []any:
			fits = forms[i] == 'l'
		}
		if got[i].Err == nil && (!fits || forms[i] == 'i' && got[i].Reply == nil) {
			got[i].Err = ErrUnexpected
		}
		first = cmp.Or(first, got[i].Err)
	}
	return first
}
