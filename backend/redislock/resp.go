package redislock

import (
	"bufio"
	"errors"
	"io"
	"strconv"
)

// What is needed of Redis' protocol, version 2: commands are arrays of strings,
// answers are strings, errors, integers, arrays and nil.

func appendCommand(buf []byte, args []string) []byte {
	buf = appendLength(buf, '*', len(args))
	for _, a := range args {
		buf = appendLength(buf, '$', len(a))
		buf = append(append(buf, a...), '\r', '\n')
	}
	return buf
}

func appendLength(buf []byte, kind byte, n int) []byte {
	return append(strconv.AppendInt(append(buf, kind), int64(n), 10), '\r', '\n')
}

var errProtocol = errors.New("redis: the server does not speak the protocol")

// maxLength is more than any answer has; a server that announces more is none.
const maxLength = 64 << 20

// readReply reads one answer. An error that the server answered is part of it: err is
// for connections that can't be used any more.
func readReply(r *bufio.Reader) (reply any, err error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	if len(line) < 3 || line[len(line)-2] != '\r' {
		return nil, errProtocol
	}
	kind, rest := line[0], string(line[1:len(line)-2])
	switch kind {
	case '+':
		return rest, nil
	case '-':
		return &replyError{text: rest, cause: errors.New(rest)}, nil
	}
	n, err := strconv.ParseInt(rest, 10, 64)
	if err != nil {
		return nil, errProtocol
	}
	if kind == ':' {
		return n, nil
	}
	switch {
	case kind != '$' && kind != '*', n > maxLength:
		return nil, errProtocol
	case n < 0:
		return nil, nil
	case kind == '*':
		return readList(r, int(n))
	}
	return readString(r, int(n))
}

func readString(r *bufio.Reader, n int) (any, error) {
	buf := make([]byte, n+2)
	if _, err := io.ReadFull(r, buf); err != nil {
		return nil, err
	}
	return string(buf[:n]), nil
}

func readList(r *bufio.Reader, n int) (any, error) {
	list := make([]any, 0, min(n, 1024))
	for range n {
		item, err := readReply(r)
		if err != nil {
			return nil, err
		}
		list = append(list, item)
	}
	return list, nil
}
