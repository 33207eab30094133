package zklock

import (
	"encoding/json"
	"net"
	"strings"
	"unicode"
	"unicode/utf8"
)

// revokeData is what a node's data become when its owner is asked for the lock, as
// Curator has it.
const revokeData = "__REVOKE__"

// A note is a node's data: what Inspect shows, and whether the holder can be asked for
// the lock. Curator reads no data but to find revokeData. It writes its host's address
// into its own nodes, or nothing into those that can be asked.
type note struct {
	Distlock *noteBody `json:"distlock"`
}

type noteBody struct {
	Meta      map[string]string `json:"meta,omitempty"`
	Revocable bool              `json:"revocable,omitempty"`
}

func writeNote(meta map[string]string, revocable bool) []byte {
	data, err := json.Marshal(note{&noteBody{meta, revocable}})
	if err != nil { // strings and a bool can always be written
		return []byte("{}")
	}
	return data
}

// readNote is what a node's data tell.
func readNote(n node, data []byte) noteBody {
	var own note
	if json.Unmarshal(data, &own) == nil && own.Distlock != nil {
		return *own.Distlock
	}
	switch text := string(data); {
	case text == revokeData:
		return noteBody{Revocable: true}
	case text == "":
		// zk.Lock's nodes are empty too; it has no UUID in their names.
		return noteBody{Revocable: n.owner != n.name}
	case net.ParseIP(text) != nil || printable(text):
		return noteBody{Meta: map[string]string{"host": text}}
	}
	return noteBody{}
}

// printable: a short text of one line, as a participant's id would be.
func printable(s string) bool {
	odd := func(r rune) bool { return !unicode.IsPrint(r) }
	return len(s) <= 256 && utf8.ValidString(s) && !strings.ContainsFunc(s, odd) && !strings.HasPrefix(s, "{")
}
