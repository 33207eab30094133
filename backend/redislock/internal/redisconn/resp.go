package redisconn

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
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
		b = append(b, w...)
		b = append(b, '\r', '\n')
	}
	return b
}

func appendCount(b []byte, kind byte, n int) []byte {
	b = append(b, kind)
	b = strconv.AppendInt(b, int64(n), 10)
	return append(b, '\r', '\n')
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
		return simple(text), n, nil
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
	return bulk(b, n, n+int(number))
}

// simple returns a status, of which there are few.
func simple(text []byte) any {
	switch string(text) {
	case "OK":
		return "OK"
	case "QUEUED":
		return "QUEUED"
	}
	return string(text)
}

// bulk returns the string b[from:to], which the end of a line follows.
func bulk(b []byte, from, to int) (any, int, error) {
	n := to + 2
	switch {
	case n > len(b):
		return nil, n, nil
	case b[to] != '\r' || b[to+1] != '\n':
		return nil, 0, fmt.Errorf("%w: a string that does not end", errInvalidReply)
	}
	return string(b[from:to]), n, nil
}

// add takes a word of n bytes. It returns the reply if that is whole.
func (r *reader) add(value any, n int) (reply any, whole bool) {
	r.at += n
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
	rest := copy(r.buf, r.buf[r.at:])
	r.buf, r.at = r.buf[:rest], 0
	switch {
	case rest == 0 && cap(r.buf) > maxLine:
		r.buf = make([]byte, 0, readSize)
	case rest == cap(r.buf):
		r.buf = slices.Grow(r.buf, min(n, 2*rest))
	}
	got, err := r.src.Read(r.buf[rest:cap(r.buf)])
	r.buf = r.buf[:rest+got]
	if got > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}
