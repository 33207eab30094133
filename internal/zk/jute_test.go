package zk

import (
	"bufio"
	"bytes"
	"slices"
	"testing"
)

func TestJuteReadsWhatItWrites(t *testing.T) {
	b := appendLong(appendInt(nil, -7), 1<<40)
	b = appendBool(appendBool(b, true), false)
	b = appendTexts(appendText(appendText(b, "é"), []byte{0, 1}), []string{"a", ""})
	d := &decoder{b: b}
	if v := d.int(); v != -7 {
		t.Errorf("int %d", v)
	}
	if v := d.long(); v != 1<<40 {
		t.Errorf("long %d", v)
	}
	if a, b := d.bool(), d.bool(); !a || b {
		t.Errorf("bools %v, %v", a, b)
	}
	if s, b, l := d.text(), d.buffer(), d.texts(); s != "é" || !bytes.Equal(b, []byte{0, 1}) || !slices.Equal(l, []string{"a", ""}) {
		t.Errorf("%q, %v, %q", s, b, l)
	}
	if d.bad || len(d.b) > 0 {
		t.Errorf("bad %v, left %v", d.bad, d.b)
	}
	if d.int(); !d.bad {
		t.Error("read beyond the end")
	}
}

// Whatever a server sends, it is read or refused: never a panic, nor more memory than
// was sent.
func FuzzReceived(f *testing.F) {
	frame := func(xid int32, zxid int64, code int32, rest ...byte) []byte {
		return append(appendInt(appendLong(appendInt(nil, xid), zxid), code), rest...)
	}
	f.Add(frame(1, 5, 0), int32(opDelete))
	f.Add(frame(1, 5, -101), int32(opGetData))
	f.Add(frame(1, 5, 0, 0x7f, 0xff, 0xff, 0xff), int32(opGetChildren2))
	f.Add(frame(1, 5, 0, 0, 0, 0, 1, 0, 0, 0, 1, 'x'), int32(opGetChildren2))
	f.Add(frame(1, 5, 0, 0xff, 0xff, 0xff, 0xff, 1), int32(opMulti))
	f.Add(frame(xidEvent, -1, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 2, '/', 'a'), int32(opGetData))
	f.Fuzz(func(t *testing.T, message []byte, what int32) {
		c := newConn(Config{})
		c.proof.connected(c.lastReceived)
		k := newRPC(opcode(what), "/a")
		k.xid, k.stage = 1, sent
		c.inFlight.push(k)
		events := 0
		at := watchKey{"/a", kindData}
		c.watches.entry(at).watches = []*Watch{{table: &c.watches, key: at, f: func(Event) { events++ }}}
		err := c.handleMessage(message, true)
		if answered := len(k.done) == 1; answered == (c.inFlight.first() != nil) || events > 1 {
			t.Errorf("answered %v, %d in flight, %d events, %v", answered, len(c.inFlight.list), events, err)
		}
	})
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte{0, 0, 0, 16, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16})
	f.Add([]byte{0xff, 0, 0, 0})
	f.Add(append([]byte{0, 0, 0, 200}, make([]byte, 200)...))
	f.Fuzz(func(t *testing.T, stream []byte) {
		const limit = 100
		r := bufio.NewReader(bytes.NewReader(stream))
		for {
			frame, whole, err := readFrame(r, nil, limit)
			if err != nil {
				return
			}
			if len(frame) < answerHead || len(frame) > limit || !whole && len(frame) != answerHead {
				t.Fatalf("a frame of %d bytes, whole %v", len(frame), whole)
			}
		}
	})
}

func FuzzWelcome(f *testing.F) {
	f.Add(append(appendText(appendLong(appendInt(appendInt(nil, 0), 4000), 7), make([]byte, passwordSize)), 0), int64(7))
	f.Add(appendInt(nil, 0), int64(0))
	f.Fuzz(func(t *testing.T, message []byte, id int64) {
		var w connectResponse
		err := w.decode(&decoder{b: message}, identity{id: id})
		if err == nil && (w.timeout <= 0 || w.id == 0 || id != 0 && w.id != id) {
			t.Errorf("accepted %+v for session %d", w, id)
		}
	})
}
