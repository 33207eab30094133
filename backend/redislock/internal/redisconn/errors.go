package redisconn

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/unsent"
)

// UnansweredError is the error of a command that its caller has given up. The command may still be
// executed until Done is closed.
type UnansweredError struct {
	Err  error
	Done <-chan struct{}
}

func (u *UnansweredError) Error() string { return u.Err.Error() }

func (u *UnansweredError) Unwrap() error { return u.Err }

// unwrittenError is the error of commands of which nothing was written to any connection.
type unwrittenError struct{ error }

func (e unwrittenError) Unwrap() error { return e.error }

func unwritten(err error) error { return unwrittenError{err} }

// ErrClientClosed is the error of a client that is closed.
var ErrClientClosed = errors.New("the client is closed")

// Refusal is a server's answer to who asks, or to a client that takes it for another kind of server: to a wrong
// password, a missing right, a server that is no sentinel. The server executed nothing. The answer says nothing about a
// lock, and may be another one in a moment: people rotate passwords. So it is no final error: see Final.
type Refusal struct {
	text  string // for people
	cause error
	lasts bool
}

// Refuse returns a Refusal with this text. cause may be nil.
func Refuse(text string, cause error) *Refusal { return &Refusal{text: text, cause: cause} }

// Lasts returns a Refusal that is no matter of moments: the client is of the wrong kind.
func (r *Refusal) Lasts() *Refusal {
	r.lasts = true
	return r
}

func (r *Refusal) Error() string { return r.text }

func (r *Refusal) Unwrap() error { return r.cause }

// IsRefusal reports whether err is because of a Refusal.
func IsRefusal(err error) bool {
	r := (*Refusal)(nil)
	return errors.As(err, &r)
}

// Final returns a Refusal as a driver.ErrInvalid if it lasts or nothing has worked yet: then it is a mistake more often
// than a matter of moments. It returns other errors unchanged.
func Final(err error, works bool) error {
	r := (*Refusal)(nil)
	if !errors.As(err, &r) || works && !r.lasts {
		return err
	}
	return &rewordedError{driver.ErrInvalid.Error() + ": " + err.Error(), []error{driver.ErrInvalid, err}}
}

// Explain puts a server's refusal into words for people. What it returns leaves the outcome of the command unknown,
// as err did: Unexecuted says more.
func Explain(err error) error {
	re, is := AsReply(err)
	if !is || IsRefusal(err) {
		return err
	}
	plain := re.plain()
	switch {
	case re.HasCode("NOAUTH"):
		return Refuse("the server wants a user or password, and was given none", re)
	case re.HasCode("WRONGPASS"):
		return Refuse("the server refuses this user or password", re)
	case strings.Contains(re.Text, "DB index is out of range"):
		return Refuse("the server has no database of this number", re)
	case re.HasCode("READONLY"):
		return fmt.Errorf("the server is a replica, or has become one: %w", plain)
	case re.HasCode("NOPERM") && Unexecuted(re):
		return Refuse(fmt.Sprintf("the server's user may not do this (docs/backends/redis.md lists what it needs): %v", plain), re)
	case re.HasCode("NOPERM"), strings.Contains(re.Text, "The user executing the script"):
		// Within a script, which may have done something before. Redis has worded it both ways.
		return fmt.Errorf("the server's user may not do all that a script does (docs/backends/redis.md lists what it needs): %w", plain)
	}
	return err
}

// unexecuted are the codes of answers to a command that the server did not execute, unless it was one of a script.
var unexecuted = []string{"NOAUTH", "WRONGPASS", "NOPERM", "BUSY", "MISCONF", "OOM", "NOREPLICAS", "EXECABORT"}

// Unexecuted reports whether a server's answer says that nothing of the command was executed.
func Unexecuted(err error) bool {
	re, is := AsReply(err)
	switch {
	case !is:
		return false
	case NotExecuted(re), re.tooMany():
		return true
	}
	return !re.plain().script && slices.ContainsFunc(unexecuted, re.HasCode)
}

// tooMany reports whether the server has no room for another client. It says so before it reads anything.
func (e *ReplyError) tooMany() bool { return strings.HasPrefix(e.Text, tooManyClients) }

const tooManyClients = "ERR max number of clients"

// Invalid returns a driver.ErrInvalid with this text.
func Invalid(text string, cause error) error {
	return &rewordedError{driver.ErrInvalid.Error() + ": " + text, []error{driver.ErrInvalid, cause}}
}

// OtherType returns a server's word that a key is of another type as a driver.ErrInvalid, and other errors unchanged.
func OtherType(err error) error {
	if re, is := AsReply(err); is && re.HasCode("WRONGTYPE") {
		return Invalid("this name is used for another kind of lock, or for other data", re)
	}
	return err
}

// MarkUnsent marks the error of a command that was not sent, or of which the server has executed nothing.
func MarkUnsent(err error) error {
	if u := (unwrittenError{}); Unexecuted(err) || errors.As(err, &u) {
		return driver.Unsent(err)
	}
	return unsent.Mark(err)
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

// plain returns e with a text for people.
func (e *ReplyError) plain() *ReplyError {
	text := WithoutScript(e.Text)
	return &ReplyError{Text: text, script: e.script || text != e.Text}
}

// WithoutScript removes the place in a script from the text of an error. Servers before 7.0 put it
// first, later ones last.
func WithoutScript(text string) string {
	if _, at, ok := strings.Cut(text, ": @user_script:"); ok {
		_, text, _ = strings.Cut(at, ": ")
	}
	text, _, _ = strings.Cut(text, " script: ")
	return text
}

// NotExecuted reports whether a server refused to execute the command because another server has the
// key, or because it is not ready.
func NotExecuted(err error) bool {
	why, _ := redirectionOf(err)
	return why != executed
}

// Apart reports whether a server refused a command while the slot of its keys moves, because it has not all of them.
func Apart(err error) bool {
	re, is := AsReply(err)
	return is && (re.HasCode("TRYAGAIN") || re.HasCode("ASK"))
}

// redirection is where a server sends a command.
type redirection uint8

const (
	executed redirection = iota // nowhere: it was executed, or may have been
	notReady                    // here again, or elsewhere
	movedTo                     // to an address, and all later ones for the slot
	askAt                       // to an address, this once
)

// redirectionOf returns the redirection in err, and its address.
func redirectionOf(err error) (why redirection, addr string) {
	if err == nil {
		return executed, ""
	}
	re, is := AsReply(err)
	if !is {
		return executed, ""
	}
	words := strings.Fields(re.Text)
	switch words = append(words, "", "", ""); words[0] {
	case "MOVED", "ASK":
		addr := redirectAddr(words[2])
		switch {
		case addr == "":
			return notReady, "" // the slot table will know
		case words[0] == "ASK":
			return askAt, addr
		}
		return movedTo, addr
	case "TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN":
		return notReady, ""
	}
	if re.HasCode("READONLY") {
		return notReady, ""
	}
	return executed, ""
}

// redirectAddr returns the address in a redirection, in which IPv6 addresses have no brackets. It
// returns "" if the server does not know the host.
func redirectAddr(text string) string {
	at := strings.LastIndexByte(text, ':')
	if at < 0 {
		return ""
	}
	switch host := strings.Trim(text[:at], "[]"); host {
	case "", "?":
		return ""
	default:
		return net.JoinHostPort(host, text[at+1:])
	}
}

// redirectionOfAll returns the redirection of commands that had no effect.
func redirectionOfAll(commands [][]string, got []Answer) (why redirection, addr string) {
	for i, a := range got {
		switch w, to := redirectionOf(a.Err); {
		case w != executed:
			if why == executed {
				why, addr = w, to
			}
		case !harmless(commands[i][0], a):
			return executed, ""
		}
	}
	return why, addr
}

// harmless reports whether a command changed nothing.
func harmless(command string, a Answer) bool {
	switch command {
	case "MULTI", "DISCARD", "WAIT", "UNWATCH", "GET", "PTTL", "EXISTS", "TIME":
		return true
	case "EXEC":
		re := (*ReplyError)(nil)
		return errors.As(a.Err, &re) && re.HasCode("EXECABORT")
	}
	return false
}
