package zk

import "fmt"

// op is what a request asks for.
type op int32

const (
	opCreate          op = 1
	opDelete          op = 2
	opGetData         op = 4
	opSetData         op = 5
	opSync            op = 9
	opGetChildren2    op = 12
	opCheck           op = 13
	opMulti           op = 14
	opCreate2         op = 15
	opRemoveWatches   op = 18
	opCreateContainer op = 19
	opAuth            op = 100
	opSetWatches      op = 101
	opCloseSession    op = -11
)

var opNames = map[op]string{
	opDelete: "delete", opGetData: "get", opSetData: "set", opSync: "sync", opGetChildren2: "children",
	opMulti: "multi", opCreate2: "create", opRemoveWatches: "remove watches", opCreateContainer: "create container",
	opAuth: "auth", opSetWatches: "set watches", opCloseSession: "close session",
}

func (o op) String() string {
	if name, ok := opNames[o]; ok {
		return name
	}
	return fmt.Sprintf("op %d", int32(o))
}

// Messages that are no answers, or whose answers are not numbered, have fixed numbers.
const (
	xidEvent      = -1
	xidAuth       = -4
	xidSetWatches = -8
)

// Mode is what becomes of a node.
type Mode int32

const (
	Persistent          Mode = 0
	Ephemeral           Mode = 1 // ends with the session
	Sequential          Mode = 2 // the server appends ten digits to its name
	EphemeralSequential      = Ephemeral | Sequential
	Container           Mode = 4 // the server removes it some time after its last child
)

func (m Mode) op() op {
	if m == Container {
		return opCreateContainer
	}
	return opCreate2
}

// permAll allows everything.
const permAll = 31

// appendACL lets everybody do everything, or only who has logged in like us.
func appendACL(b []byte, private bool) []byte {
	b = appendInt(appendInt(b, 1), permAll)
	if private {
		return appendText(appendText(b, "auth"), "")
	}
	return appendText(appendText(b, "world"), "anyone")
}
