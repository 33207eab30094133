package kubelock

import "github.com/distlock/distlock/internal/record"

// names are the names of Leases. A lock's name is its Lease's if it can be, unless there is "0x" in it.
var names = record.Encoding{Escape: "0x%02x", Hash: "0xx", Room: 253, Plain: stands}

// stands reports whether a character of a name may stand as it is in the name of a Lease.
func stands(name string, i int) bool {
	var before, after byte
	if i > 0 {
		before = name[i-1]
	}
	if i+1 < len(name) {
		after = name[i+1]
	}
	switch c := name[i]; c {
	case '0':
		return after != 'x'
	case '.':
		return alphanumeric(before) && alphanumeric(after)
	case '-':
		return (before == '-' || alphanumeric(before)) && (after == '-' || alphanumeric(after))
	default:
		return alphanumeric(c)
	}
}

func alphanumeric(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }
