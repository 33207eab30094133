package redisconn

import (
	"slices"
	"sync"
)

// request has commands that are sent together. The mutex of its multiplexer guards it, but its bytes until it is queued.
type request struct {
	bytes []byte // until they are written
	size  int
	n     int // the answers that it gets
	stage stage

	one Answer   // if n is 1
	all []Answer // otherwise
	err error    // in place of answers

	over  chan struct{} // receives once the request is over, unless its caller has given up
	later chan struct{} // is closed then; nil: the caller waits
}

type stage uint8

const (
	queued stage = iota // nothing of it was written
	sent                // some of it may have been written
	over                // answered, or failed
)

// requests are used again.
type requests struct{ pool sync.Pool }

// keptBytes is how large a buffer may be that is used again.
const keptBytes = 16 << 10

func (r *requests) get(commands ...[]string) *request {
	x, _ := r.pool.Get().(*request)
	if x == nil {
		x = &request{over: make(chan struct{}, 1)}
	}
	for _, c := range commands {
		x.bytes = appendCommand(x.bytes, c)
	}
	x.size, x.n, x.stage = len(x.bytes), len(commands), queued
	return x
}

// free takes back a request that nobody else knows any more.
func (r *requests) free(x *request) {
	x.one, x.all, x.err = Answer{}, nil, nil
	if x.bytes = x.bytes[:0]; cap(x.bytes) > keptBytes {
		x.bytes = nil
	}
	r.pool.Put(x)
}

// answered takes the answers, whose memory is used again.
func (x *request) answered(got []Answer) {
	x.stage = over
	if x.n == 1 {
		x.one = got[0]
		return
	}
	x.all = slices.Clone(got)
}

func (x *request) failed(err error) { x.stage, x.err = over, err }

// end lets the caller go on, or closes what others wait on for the end of a request that was given up. later is as it was when the
// request was over.
func (x *request) end(later chan struct{}) {
	if later != nil {
		close(later)
		return
	}
	x.over <- struct{}{}
}
