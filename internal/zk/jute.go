package zk

import "encoding/binary"

// Numbers are big-endian; strings, buffers and lists begin with their length, which is
// -1 for none.

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

// decoder reads a message. After something that can't be read it yields zeros, and
// bad is set.
type decoder struct {
	b   []byte
	bad bool
}

// next is the following n bytes, still in the message's memory.
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

// raw is a string or buffer, still in the message's memory.
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
	if n > len(d.b)/4 { // each has a length at least: so nobody makes us reserve more than was sent
		d.b, d.bad = nil, true
		return nil
	}
	list := make([]string, n)
	for i := range list {
		list[i] = d.text()
	}
	return list
}
