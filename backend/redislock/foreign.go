package redislock

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
)

// maxToken is the length of the longest token that another library is expected to write.
const maxToken = 1024

const uuidForm = `[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}`

var (
	noteStart = regexp.MustCompile(`^` + uuidForm + ` $`)
	noteForm  = regexp.MustCompile(`^` + uuidForm + ` [^ ]* [0-9,-]*$`)
	fieldForm = regexp.MustCompile(`^` + uuidForm + `:-?[0-9]+$`)            // of Redisson's hashes
	tokenForm = regexp.MustCompile(`^(?:` + uuidForm + `|[0-9a-fA-F]{32})$`) // redis-py's may have no TTL
)

// isLockString reports whether a string may be a lock: distlock's own, or the token of another
// library or script. left is PTTL's answer. scripts/foreign.lua has the same rule.
//
// Tokens are arbitrary strings, so what has a TTL counts as one unless it is a JSON object,
// or long. Without a TTL it has to look like one.
func isLockString(value string, left int64) bool {
	switch {
	case noteForm.MatchString(value):
		return true
	case left == -1:
		return tokenForm.MatchString(value)
	}
	return len(value) <= maxToken && !(strings.HasPrefix(value, "{") && strings.HasSuffix(value, "}"))
}

// noToken describes a string that isn't one.
func noToken(left int64) string {
	if left == -1 {
		return "a string without a TTL"
	}
	return "a string that is no token"
}

// noLock is the error for a key whose data are no lock of the kind that was asked for.
func (b *Backend) noLock(name, data string) error {
	return fmt.Errorf("%w: the key %s holds %s: this is other data, or a lock in a form that is not known here; use another name, or keep locks apart from other data by a prefix, such as ?prefix=locks: in the URL, or Options.Prefix",
		driver.ErrInvalid, driver.Quote(b.prefix+name), data)
}

// named puts the key into a script's answer about other data.
func (b *Backend) named(name string, err error) error {
	re, is := redisconn.AsReply(err)
	if !is || !re.HasCode("NOLOCK") {
		return err
	}
	_, data, _ := strings.Cut(redisconn.WithoutScript(re.Text), "NOLOCK ")
	return b.noLock(name, data)
}
