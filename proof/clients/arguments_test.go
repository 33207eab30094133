//go:build linux

package clients

import (
	"regexp"
	"strings"
)

// typed are the languages in which these arguments don't compile.
const typed = "go java"

// argumentPromises are those about wrong arguments: they raise at once, and say what would be right.
var argumentPromises = []promise{
	wrong("no name", `(?i)name.*(empty|want)|empty.*name`, ""),
	wrong("ttl in another unit", `\b30(\.0)?\b.*30[_,.]?000\b|30[_,.]?000\b.*\b30(\.0)?\b`, typed),
	wrong("ttl of nothing", `(?i)want.* (more than|at least)|positive|ttl 0s`, ""),
	wrong("mode of another library", `read`, "go"),
	wrong("timeout", `wait|ttl`, typed),
	wrong("blocking", `wait|try`, typed),
	wrong("leaseTime", `ttl`, typed),
	wrong("retryCount", `wait`, typed),
	{name: "a URL without a scheme is refused, and the error says what is right", keep: func(c *cell) {
		wrongURL(c, "locks.example:7077")
	}},
	{name: "a wrong URL is refused without its password", keep: func(c *cell) {
		wrongURL(c, "htp://user:"+token+"@locks.example:7077")
	}},
}

// wrong is the promise about a wrong argument of a lock. An error matches what would be right.
func wrong(argument, right, without string) promise {
	return promise{name: "wrong argument: " + argument, without: without, keep: func(c *cell) {
		r := newRig(c, false)
		text := c.client(r).call("wrong", "case", argument).answer()
		if said, found := strings.CutPrefix(text, "error "); !found || !regexp.MustCompile(right).MatchString(said) {
			c.Errorf("it says %q, want %s", text, right)
		}
		if r.seen.total() > 0 {
			c.Error("the server was asked")
		}
	}}
}

func wrongURL(c *cell, url string) {
	r := newRig(c, false)
	text := c.client(r).call("wrong", "case", "URL", "url", url).fails("")
	if !strings.Contains(text, "http") {
		c.Errorf("it says %q", text)
	}
}
