package zk

// result is one part of a multi's answer.
type result struct{}

func appendMultiEnd(b []byte) []byte { return appendInt(appendBool(appendInt(b, -1), true), -1) }

// results reads the answer to a multi without parts.
func (d *decoder) results() []result {
	d.int()
	if !d.bool() {
		d.bad = true
	}
	d.int()
	return nil
}
