package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
)

// Bounds of the look at other prefixes: it is a courtesy.
const (
	elsewhereTimeout = 300 * time.Millisecond
	maxElsewhere     = 3
)

// elsewhere says which locks are held under other prefixes of this Redis and have a name there, or any. Programs with
// different prefixes do not exclude each other, and nothing else shows that. It is empty if there are none.
func (a *app) elsewhere(ctx context.Context, name string) string {
	u, err := driver.ParseURL(a.location)
	if err != nil || !strings.Contains(u.Scheme, "redis") {
		return ""
	}
	q := u.Query()
	ours := q.Get("prefix")
	q.Del("prefix")
	u.RawQuery = q.Encode()
	ctx, cancel := context.WithTimeout(ctx, elsewhereTimeout)
	defer cancel()
	b, err := openURL(ctx, u.String())
	if err != nil {
		return ""
	}
	c, err := newClient(b, nil)
	if err != nil {
		return ""
	}
	defer c.Close()
	var found []string
	for key, err := range c.List(ctx, "") {
		if err != nil || len(found) == maxElsewhere {
			break
		}
		if underAnother(key, name, ours) {
			found = append(found, key)
		}
	}
	return describeElsewhere(found, ours)
}

// underAnother reports whether key is a lock under another prefix than ours, whose name there is name, or any for "". A prefix
// ends as prefixes do: "banana" is no lock "a".
func underAnother(key, name, ours string) bool {
	prefix, ok := strings.CutSuffix(key, name)
	switch {
	case ours != "" && strings.HasPrefix(key, ours):
		return false
	case name == "", !ok, prefix == "":
		return ok && ours != ""
	}
	return strings.Contains(":/.#|", prefix[len(prefix)-1:])
}

func describeElsewhere(found []string, ours string) string {
	if len(found) == 0 {
		return ""
	}
	here := "none"
	if ours != "" {
		here = quoted(ours)
	}
	return fmt.Sprintf("; under other prefixes of this server there are %s (the ?prefix= here is %s), which other programs may mean", quotedAll(found), here)
}
