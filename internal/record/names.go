package record

import (
	"crypto/sha256"
	"fmt"
	"strings"
)

// Encoding writes names in what a store allows. No two names become the same.
type Encoding struct {
	Escape string                        // the format of a byte that can't stand as it is
	Hash   string                        // comes before the hash of a name that is too long, and begins no Escape
	Room   int                           // how long a name may become
	Plain  func(name string, i int) bool // reports whether a byte stands as it is
}

// Encode returns what stands for name: of one that is too long the beginning and a hash.
func (e Encoding) Encode(name string) string {
	text, cut := e.encode(name)
	if len(text) <= e.Room {
		return text
	}
	return fmt.Sprintf("%s%s%x", text[:cut], e.Hash, sha256.Sum256([]byte(name)))
}

// Prefix returns what all names with a prefix begin with. Others may begin with it too.
func (e Encoding) Prefix(prefix string) string {
	text, cut := e.encode(prefix)
	return text[:cut]
}

// encode returns a name of any length, and where a hash would begin.
func (e Encoding) encode(name string) (text string, cut int) {
	var b strings.Builder
	for i := range len(name) {
		if e.Plain(name, i) {
			b.WriteByte(name[i])
		} else {
			fmt.Fprintf(&b, e.Escape, name[i])
		}
		if b.Len()+len(e.Hash)+2*sha256.Size <= e.Room {
			cut = b.Len()
		}
	}
	return b.String(), cut
}
