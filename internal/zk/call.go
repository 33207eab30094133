package zk

import (
	"encoding/binary"
	"sync"
	"time"
)

// stage is how far a call has come. Conn.mu guards it.
type stage int

const (
	queued    stage = iota // not written yet
	sent                   // written, at least in part
	answered               // err and the answer are set, and done has been told
	abandoned              // nobody waits for it any more, though it was written
)

// call is a request and its answer.
type call struct {
	op     op
	path   string // as the caller calls it, for errors
	frame  []byte // the request; its length and number are set when it is written
	xid    int32  // its fixed number; 0: the connection's next
	repeat bool   // it does no harm to send it again
	bound  bool   // it serves its connection: with that it ends, and nobody waits for it

	stage   stage
	at      time.Time // when it was written
	repeats int

	watch *Watch // which the server is asked for
	done  chan struct{}

	err      error
	created  string
	data     []byte
	children []string
	stat     Stat
	results  []result // of a multi
}

const (
	frameHead  = 12 // length, number, op
	maxRepeats = 3
)

var calls = sync.Pool{New: func() any { return &call{done: make(chan struct{}, 1)} }}

// newCall is a request without what follows its head.
func newCall(o op, path string) *call {
	k := calls.Get().(*call)
	*k = call{op: o, path: path, frame: append(k.frame[:0], make([]byte, frameHead)...), done: k.done}
	binary.BigEndian.PutUint32(k.frame[8:], uint32(o))
	return k
}

// free gives back a call that nobody else knows.
func (k *call) free() {
	*k = call{frame: k.frame, done: k.done}
	calls.Put(k)
}

// number sets what is only known when the call is written.
func (k *call) number(xid int32) {
	binary.BigEndian.PutUint32(k.frame, uint32(len(k.frame)-4))
	binary.BigEndian.PutUint32(k.frame[4:], uint32(xid))
	k.xid = xid
}

// commits reports whether an answer without an error means that a majority of the
// servers has agreed.
func (k *call) commits() bool {
	switch k.op {
	case opCreate2, opCreateContainer, opDelete, opSetData, opMulti:
		return true
	}
	return false
}

// decode reads an answer that is no error.
func (k *call) decode(d *decoder) {
	switch k.op {
	case opCreate2, opCreateContainer:
		k.created, k.stat = d.text(), d.stat()
	case opGetData:
		k.data, k.stat = d.buffer(), d.stat()
	case opSetData:
		k.stat = d.stat()
	case opGetChildren2:
		k.children, k.stat = d.texts(), d.stat()
	case opMulti:
		k.results = d.results()
	}
	if d.bad {
		k.err = errProtocol
	}
}
