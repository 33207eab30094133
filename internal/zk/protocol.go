package zk

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/distlock/distlock/driver"
)

// opcode is the type of a request.
type opcode int32

const (
	opCreate          opcode = 1
	opDelete          opcode = 2
	opGetData         opcode = 4
	opSetData         opcode = 5
	opGetChildren2    opcode = 12
	opCheck           opcode = 13
	opMulti           opcode = 14
	opCreate2         opcode = 15
	opRemoveWatches   opcode = 18
	opCreateContainer opcode = 19
	opAuth            opcode = 100
	opSetWatches      opcode = 101
	opCloseSession    opcode = -11
)

var opNames = map[opcode]string{
	opDelete: "delete", opGetData: "get", opSetData: "set", opGetChildren2: "children",
	opMulti: "multi", opCreate2: "create", opRemoveWatches: "remove watches", opCreateContainer: "create container",
	opAuth: "auth", opSetWatches: "set watches", opCloseSession: "close session",
}

func (o opcode) String() string {
	if name, ok := opNames[o]; ok {
		return name
	}
	return fmt.Sprintf("op %d", int32(o))
}

// Fixed xids: of events, and of requests whose answers carry no xid of their own.
const (
	xidEvent      = -1
	xidAuth       = -4
	xidSetWatches = -8
)

// Mode is the kind of node that Create makes.
type Mode int32

const (
	Persistent          Mode = 0
	Ephemeral           Mode = 1 // is deleted with its session
	Sequential          Mode = 2 // the server appends ten digits to its name
	EphemeralSequential      = Ephemeral | Sequential
	Container           Mode = 4 // the server deletes it some time after its last child
)

func (m Mode) opcode() opcode {
	if m == Container {
		return opCreateContainer
	}
	return opCreate2
}

// Stat is the metadata of a node.
type Stat struct {
	Czxid          int64 // the transaction that created it
	Mzxid          int64 // the last one that changed its data
	Ctime, Mtime   int64 // ms since 1970 by the server's clock
	Version        int32 // number of changes of its data
	Cversion       int32 // number of changes of its children
	Aversion       int32 // number of changes of its ACL
	EphemeralOwner int64 // the session of an ephemeral node, otherwise 0
	DataLength     int32
	NumChildren    int32
	Pzxid          int64 // the last transaction that changed its children
}

// Jute, ZooKeeper's encoding: numbers are big-endian; strings, buffers and lists begin with their
// length, which is -1 for null.

func appendInt(b []byte, v int32) []byte { return binary.BigEndian.AppendUint32(b, uint32(v)) }

func appendLong(b []byte, v int64) []byte { return binary.BigEndian.AppendUint64(b, uint64(v)) }

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func appendText[T string | []byte](b []byte, v T) []byte {
	return append(appendInt(b, int32(len(v))), v...)
}

func appendTexts(b []byte, list []string) []byte {
	b = appendInt(b, int32(len(list)))
	for _, s := range list {
		b = appendText(b, s)
	}
	return b
}

// permAll is the ACL permission for everything.
const permAll = 31

// appendACL grants everything to everybody, or only to the user of this session.
func appendACL(b []byte, private bool) []byte {
	b = appendInt(appendInt(b, 1), permAll)
	if private {
		return appendText(appendText(b, "auth"), "")
	}
	return appendText(appendText(b, "world"), "anyone")
}

func appendMultiPart(b []byte, o opcode) []byte {
	return appendInt(appendBool(appendInt(b, int32(o)), false), -1)
}

func appendMultiEnd(b []byte) []byte { return appendInt(appendBool(appendInt(b, -1), true), -1) }

// decoder reads a message. After a malformed value it returns zeros, and bad is set.
type decoder struct {
	b   []byte
	bad bool
}

// next returns the following n bytes, which share the message's memory.
func (d *decoder) next(n int) []byte {
	if n < 0 || n > len(d.b) {
		d.b, d.bad = nil, true
		return nil
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) int() int32 {
	if v := d.next(4); v != nil {
		return int32(binary.BigEndian.Uint32(v))
	}
	return 0
}

func (d *decoder) long() int64 {
	if v := d.next(8); v != nil {
		return int64(binary.BigEndian.Uint64(v))
	}
	return 0
}

func (d *decoder) bool() bool {
	v := d.next(1)
	return v != nil && v[0] != 0
}

// raw returns a string or buffer, which shares the message's memory.
func (d *decoder) raw() []byte {
	n := d.int()
	if n == -1 {
		return nil
	}
	return d.next(int(n))
}

func (d *decoder) text() string { return string(d.raw()) }

func (d *decoder) buffer() []byte { return append([]byte(nil), d.raw()...) }

func (d *decoder) texts() []string {
	n := int(d.int())
	if n <= 0 {
		return nil
	}
	if n > len(d.b)/4 { // each has a length: a server can't make us allocate more than it sent
		d.b, d.bad = nil, true
		return nil
	}
	list := make([]string, n)
	for i := range list {
		list[i] = d.text()
	}
	return list
}

func (d *decoder) stat() Stat {
	return Stat{
		Czxid: d.long(), Mzxid: d.long(), Ctime: d.long(), Mtime: d.long(),
		Version: d.int(), Cversion: d.int(), Aversion: d.int(),
		EphemeralOwner: d.long(), DataLength: d.int(), NumChildren: d.int(), Pzxid: d.long(),
	}
}

// multiResult is the error code of one part of a multi. If a part fails nothing is done: the parts
// before it have 0, and those behind it multiNotTried.
type multiResult int32

const (
	multiError    opcode      = -1
	multiNotTried multiResult = -2
)

func (d *decoder) multiResults() []multiResult {
	var list []multiResult
	for !d.bad {
		o, end := opcode(d.int()), d.bool()
		code := d.int()
		switch {
		case end:
			return list
		case o == multiError:
			code = d.int()
		case o == opCreate:
			d.raw() // the path
		case o == opCreate2:
			d.raw()
			d.stat()
		}
		list = append(list, multiResult(code))
	}
	return nil
}

// Errors of a request.
var (
	ErrNoNode        = errors.New("no such node")
	ErrNodeExists    = errors.New("the node exists")
	ErrBadVersion    = errors.New("the node has another version")
	ErrNotEmpty      = errors.New("the node has children")
	ErrNoChildren    = errors.New("an ephemeral node can't have children")
	ErrBadArguments  = errors.New("the server finds the request invalid")
	ErrUnimplemented = errors.New("the server is too old for this")
)

// Errors that end the session. They are facts, and final.
var (
	// ErrSessionExpired means that the server ended the session: its ephemeral nodes are gone, or
	// will be before any later request is served.
	ErrSessionExpired = errors.New("the session has expired")

	// ErrClosed means that Close was called.
	ErrClosed = errors.New("the session is closed")
)

// Errors of what the server refuses for now. They are no facts: a right, a login or a quota may be given back, and the
// session lives on.
var (
	ErrNoAuth    = errors.New("the node's ACL forbids it")
	ErrQuota     = errors.New("a quota is used up")
	ErrThrottled = errors.New("the server has too much to do")

	// ErrAuthFailed means that the server refuses the login, and with it the connection.
	ErrAuthFailed = errors.New("the server refuses the login")
)

var (
	// ErrConnectionLoss means that the request was sent and no answer came: it may have been
	// executed, or may be a little later.
	ErrConnectionLoss = errors.New("the connection broke before the answer came")

	// ErrNotSent means that the request never left this process.
	ErrNotSent = errors.New("not sent")

	// ErrTooLarge means that a request or an answer is longer than a message may be. Such a request
	// is not sent.
	ErrTooLarge = errors.New("longer than a message may be")

	// ErrNoChroot means that the chroot doesn't exist.
	ErrNoChroot = errors.New("the chroot doesn't exist")
)

var errProtocol = errors.New("the server's message makes no sense")

// codes maps the server's error codes.
var codes = map[int32]error{
	-4: ErrConnectionLoss, -6: ErrUnimplemented, -8: ErrBadArguments, -101: ErrNoNode,
	codeNoAuth: ErrNoAuth, -103: ErrBadVersion, -108: ErrNoChildren, -110: ErrNodeExists,
	-111: ErrNotEmpty, -112: ErrSessionExpired, -115: ErrAuthFailed, codeMoved: ErrConnectionLoss,
	-124: ErrAuthFailed, -125: ErrQuota, -127: ErrThrottled,
}

// codeMoved means that the session is in use on another connection. This request was refused, but
// one before it may have been executed.
const codeMoved = -118

const codeNoAuth = -102

func codeError(code int32) error {
	if code == 0 {
		return nil
	}
	if err := codes[code]; err != nil {
		return err
	}
	return fmt.Errorf("the server answers with error %d", code)
}

// opError is the error of a request, with its opcode and path.
type opError struct {
	opcode opcode
	path   string
	err    error
}

func (e *opError) Error() string {
	return fmt.Sprintf("zk: %v %s: %v", e.opcode, driver.Quote(e.path), e.err)
}

func (e *opError) Unwrap() error { return e.err }
