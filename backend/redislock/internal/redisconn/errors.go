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

// AsReply returns the ReplyError in err, if there is one.
func AsReply(err error) (*ReplyError, bool) {
	re := (*ReplyError)(nil)
	is := errors.As(err, &re)
	return re, is
}

// HasCode reports whether the error has this code. Servers before 7.0 put the error of a script's
// command into the middle of the text.
func (e *ReplyError) HasCode(code string) bool {
	return strings.HasPrefix(e.Text, code+" ") || strings.Contains(e.Text, ": "+code+" ")
}

// UnknownCommand reports whether the server doesn't know the command.
func (e *ReplyError) UnknownCommand() bool {
	return e.HasCode("ERR") && strings.Contains(e.Text, "unknown command")
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

// UnansweredError is the error of a command that its caller has given up. The command may still be
// executed until Done is closed.
type UnansweredError struct {
	Err  error
	Done <-chan struct{}
}

func (u *UnansweredError) Error() string { return u.Err.Error() }

func (u *UnansweredError) Unwrap() error { return u.Err }

// ErrClientClosed is in the error of a user's client that is closed, or has closed its connections
// to a server for good.
var ErrClientClosed = errors.New("the client is closed")

// ClientClosed returns an error that is both err and ErrClientClosed.
func ClientClosed(err error) error { return closedError{err} }

type closedError struct{ error }

func (e closedError) Unwrap() error { return e.error }

func (e closedError) Is(target error) bool { return target == ErrClientClosed }

// Explain returns a final error for a server's refusal, in words for people. It returns other errors
// unchanged: they leave the outcome of the command unknown.
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
	case strings.Contains(re.Text, "The user executing the script"):
		// Since Redis 7, for a command within a script. It is not final: what the script did before it is done.
		return fmt.Errorf("the server's user may not do all that a script does (docs/backends/redis.md lists what it needs): %w", plain)
	}
	return err
}

// Invalid returns a driver.ErrInvalid with this text.
func Invalid(text string, cause error) error {
	return &rewordedError{driver.ErrInvalid.Error() + ": " + text, []error{driver.ErrInvalid, cause}}
}

// Reworded returns err with another text.
func Reworded(text string, err error) error { return &rewordedError{text, []error{err}} }

// rewordedError has its causes' identity, but not their text.
type rewordedError struct {
	text  string
	cause []error
}

func (e *rewordedError) Error() string { return e.text }

func (e *rewordedError) Unwrap() []error { return e.cause }

// WithoutScript removes the place in a script from the text of an error. Servers before 7.0 put it
// first, later ones last.
func WithoutScript(text string) string {
	if _, at, ok := strings.Cut(text, ": @user_script:"); ok {
		_, text, _ = strings.Cut(at, ": ")
	}
	text, _, _ = strings.Cut(text, " script: ")
	return text
}

// errUnexpected is the error of a reply that has another form than the command's.
var errUnexpected = errors.New("unexpected answer")
