package zk

import (
	"errors"
	"fmt"

	"github.com/distlock/distlock/driver"
)

// What the server answers.
var (
	ErrNoNode        = errors.New("no such node")
	ErrNodeExists    = errors.New("the node exists")
	ErrNoAuth        = errors.New("the node's ACL forbids it")
	ErrBadVersion    = errors.New("the node has another version")
	ErrNotEmpty      = errors.New("the node has children")
	ErrNoChildren    = errors.New("an ephemeral node can't have children")
	ErrBadArguments  = errors.New("the server finds the request invalid")
	ErrUnimplemented = errors.New("the server is too old for this")
)

// What ends a session. Each is a fact, and final.
var (
	// ErrSessionExpired means that the server ended the session: its ephemeral nodes
	// are gone, or will be before anything that is asked later.
	ErrSessionExpired = errors.New("the session has expired")

	// ErrAuthFailed means that the server refuses the user.
	ErrAuthFailed = errors.New("the server refuses the user")

	// ErrClosed means that this side closed the session.
	ErrClosed = errors.New("the session is closed")
)

var (
	// ErrConnectionLoss means that the request was sent and its answer never came: it
	// may have been done, or be done a little later.
	ErrConnectionLoss = errors.New("the connection broke before the answer came")

	// ErrNotSent means that the request never left this process.
	ErrNotSent = errors.New("not sent")

	// ErrTooLarge means that a request, or what would answer it, is longer than a
	// message may be. Nothing that is too large is sent.
	ErrTooLarge = errors.New("longer than a message may be")

	// ErrNoChroot means that the node below which all paths are meant doesn't exist.
	ErrNoChroot = errors.New("the chroot doesn't exist")
)

var errProtocol = errors.New("the server's message makes no sense")

// codes are the server's numbers for its answers.
var codes = map[int32]error{
	-4: ErrConnectionLoss, -6: ErrUnimplemented, -8: ErrBadArguments, -101: ErrNoNode,
	-102: ErrNoAuth, -103: ErrBadVersion, -108: ErrNoChildren, -110: ErrNodeExists,
	-111: ErrNotEmpty, -112: ErrSessionExpired, -115: ErrAuthFailed, codeMoved: ErrConnectionLoss,
}

// codeMoved says that the session is in use on another connection. The request was
// refused, yet one that it follows may not have been.
const codeMoved = -118

func codeError(code int32) error {
	if code == 0 {
		return nil
	}
	if err := codes[code]; err != nil {
		return err
	}
	return fmt.Errorf("the server answers with error %d", code)
}

// callError says what was asked when it went wrong.
type callError struct {
	op   op
	path string
	err  error
}

func (e *callError) Error() string {
	return fmt.Sprintf("zk: %v %s: %v", e.op, driver.Quote(e.path), e.err)
}

func (e *callError) Unwrap() error { return e.err }
