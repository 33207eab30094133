package page

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// Viewer is one who looks, and what that one may do with a lock.
type Viewer struct {
	Name            string
	Known           bool // the server has identified the viewer; other viewers see nothing of it
	CanLogout       bool
	See, Ask, Break func(name string) bool

	// Rights identifies what these say: viewers with the same rights see the same. It can be compared.
	Rights any
}

// Live are the pages that change while they are open.
var Live = []string{"locks", "lock", "hot", "losses", "backend"}

// Query says which page is shown, and of what.
type Query struct{ Page, Prefix, Sort, Name, Done string }

// ParseQuery reads the query of a page.
func ParseQuery(page string, q url.Values) Query {
	return Query{page, q.Get("prefix"), q.Get("sort"), q.Get("name"), q.Get("done")}
}

// events returns where the changes of the page come from.
func (q Query) events() string {
	v := url.Values{"page": {q.Page}}
	for key, value := range map[string]string{"prefix": q.Prefix, "sort": q.Sort, "name": q.Name} {
		if value != "" {
			v.Set(key, value)
		}
	}
	return "/v1/events?" + v.Encode()
}

// Language returns the language that the viewer wants most, as an index of languages.
func Language(r *http.Request) int {
	best, quality := 0, 0.0
	for _, part := range strings.Split(r.Header.Get("Accept-Language"), ",") {
		tag, options, _ := strings.Cut(strings.TrimSpace(part), ";")
		q := 1.0
		if text, ok := strings.CutPrefix(strings.TrimSpace(options), "q="); ok {
			q, _ = strconv.ParseFloat(text, 64)
		}
		primary, _, _ := strings.Cut(strings.ToLower(tag), "-")
		for i, lang := range languages {
			if own, _, _ := strings.Cut(lang, "-"); own == primary && q > quality {
				best, quality = i, q
			}
		}
	}
	return best
}
