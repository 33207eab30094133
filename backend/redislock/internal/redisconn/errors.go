package redisconn

import (
	"errors"
	"fmt"
	"strings"

	"github.com/distlock/distlock/driver"
)

// ReplyError is an error that the server answered.
type ReplyError struct {
	Text  string
	Cause error // the library's
}

func (e *ReplyError) Error() string { return "redis: " + e.Text }

func (e *ReplyError) Unwrap() error { return e.Cause }

// AsReply is the server's error in err, if it is one.
func AsReply(err error) (*ReplyError, bool) {
	re := (*ReplyError)(nil)
	is := errors.As(err, &re)
	return re, is
}

// HasCode reports whether the server's error has this code. A server before 7.0 puts what a
// script's command answered into the middle of the text.
func (e *ReplyError) HasCode(code string) bool {
	return strings.HasPrefix(e.Text, code+" ") || strings.Contains(e.Text, ": "+code+" ")
}

// UnknownCommand reports whether the server doesn't know the command.
func (e *ReplyError) UnknownCommand() bool {
	return e.HasCode("ERR") && strings.Contains(e.Text, "unknown command")
}

func FirstError(list []Answer) error {
	for _, a := range list {
		if a.Err != nil {
			return a.Err
		}
	}
	return nil
}

// TransportError is the first error that the server did not answer.
func TransportError(list []Answer) error {
	for _, a := range list {
		if _, is := AsReply(a.Err); a.Err != nil && !is {
			return a.Err
		}
	}
	return nil
}

// UnansweredError is the error of a caller that has given up on a command, which may still be
// executed until Done is closed.
type UnansweredError struct {
	Err  error
	Done <-chan struct{}
}

func (u *UnansweredError) Error() string { return u.Err.Error() }

func (u *UnansweredError) Unwrap() error { return u.Err }

// ErrClientClosed is that of a user's client which is closed, or has closed its connections to a
// server for good.
var ErrClientClosed = errors.New("the client is closed")

// ClientClosed makes a library's error ErrClientClosed too.
func ClientClosed(err error) error { return closedError{err} }

type closedError struct{ error }

func (e closedError) Unwrap() error { return e.error }

func (e closedError) Is(target error) bool { return target == ErrClientClosed }

// Explain turns the errors of a connection that are facts into such, and leaves the others,
// which say nothing of what became of the command.
func Explain(err error) error {
	re, is := AsReply(err)
	if !is || driver.Final(err) {
		return err
	}
	plain := &ReplyError{Text: WithoutScript(re.Text), Cause: re.Cause}
	switch {
	case re.HasCode("NOAUTH"):
		return Invalid("the server wants a user or password, and was given none", re)
	case re.HasCode("WRONGPASS"):
		return Invalid("the server refuses this user or password", re)
	case strings.Contains(re.Text, "DB index is out of range"):
		return Invalid("the server has no database of this number", re)
	case re.HasCode("READONLY"):
		return fmt.Errorf("the server is a replica, or has become one: %w", plain)
	case re.HasCode("NOPERM"):
		return fmt.Errorf("%w: the server's user may not do this (docs/backends/redis.md lists what it needs): %w", driver.ErrInvalid, plain)
	}
	return err
}

// Invalid is ErrInvalid in these words.
func Invalid(text string, cause error) error {
	return &rewordedError{driver.ErrInvalid.Error() + ": " + text, []error{driver.ErrInvalid, cause}}
}

// Reworded is err in words for people.
func Reworded(text string, err error) error { return &rewordedError{text, []error{err}} }

// rewordedError is an error in words for people. Its cause can be reached, but is not quoted.
type rewordedError struct {
	text  string
	cause []error
}

func (e *rewordedError) Error() string { return e.text }

func (e *rewordedError) Unwrap() []error { return e.cause }

// WithoutScript leaves out where in a script an error happened, which is of no use to
// the user. A server before 7.0 says that first, a later one last.
func WithoutScript(text string) string {
	if _, at, ok := strings.Cut(text, ": @user_script:"); ok {
		_, text, _ = strings.Cut(at, ": ")
	}
	text, _, _ = strings.Cut(text, " script: ")
	return text
}

// errUnexpected is that of an answer of another form than the command has.
var errUnexpected = errors.New("unexpected answer")
