package kubelock

import (
	"crypto/sha256"
	"fmt"
	"strings"
)

// longest is how many characters the name of a Lease can have.
const longest = 253

// hashed is how long the end of a name that is too long is. No other name has an x behind 0x.
const hashed = len("0xx") + 2*sha256.Size

// leaseName returns the name of the Lease of a lock. It is another one for each name, and the name itself if that is a
// Lease's already, unless there is "0x" in it.
func leaseName(name string) string {
	var b strings.Builder
	cut := 0
	for i := range len(name) {
		if b.Len() <= longest-hashed {
			cut = b.Len()
		}
		if stands(name, i) {
			b.WriteByte(name[i])
		} else {
			fmt.Fprintf(&b, "0x%02x", name[i])
		}
		if b.Len() > longest {
			return fmt.Sprintf("%s0xx%x", b.String()[:cut], sha256.Sum256([]byte(name)))
		}
	}
	return b.String()
}

// stands reports whether a character of a name may stand as it is in the name of a Lease.
func stands(name string, i int) bool {
	var before, after byte
	if i > 0 {
		before = name[i-1]
	}
	if i+1 < len(name) {
		after = name[i+1]
	}
	switch c := name[i]; {
	case c == '0' && after == 'x':
		return false
	case c == '.':
		return alphanumeric(before) && alphanumeric(after)
	case c == '-':
		return (before == '-' || alphanumeric(before)) && (after == '-' || alphanumeric(after))
	default:
		return alphanumeric(c)
	}
}

func alphanumeric(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }
