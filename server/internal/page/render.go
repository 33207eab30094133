package page

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"hash/maphash"
	"html/template"
	"path"
	"regexp"
	"strconv"
	"sync"
	"time"
)

// files has what all pages are made of.
type files struct {
	templates [len(languages)]*template.Template
	assets    map[string][]byte
	version   string // of the assets
}

// piece is a part of a page that is sent again when it has changed.
type piece struct {
	ID   string        `json:"id"`
	HTML template.HTML `json:"html"`
	sum  uint64        // of what is not volatile
	ends []int64       // of the holds in it: when, in ms since 1970, and their TTL in ms
}

// volatile matches the parts that page.js keeps up to date by itself: running times, and their bars. ends matches those that
// a renewal changes.
var (
	ends     = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`data-until="(\d+)" data-ttl="(\d+)"`) })
	volatile = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`>[^<]*</time>|width="\d+%"|data-tone="\w+"|` + ends().String())
	})
)

var sumSeed = maphash.MakeSeed()

var assetTypes = map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}

//go:embed files
var embedded embed.FS

func newFiles() *files {
	p := &files{assets: map[string][]byte{}}
	sum := sha256.New()
	all, err := embedded.ReadDir("files")
	if err != nil {
		panic(err) // they are embedded
	}
	for _, f := range all {
		text, err := embedded.ReadFile("files/" + f.Name())
		if err != nil {
			panic(err)
		}
		if assetTypes[path.Ext(f.Name())] != "" {
			p.assets[f.Name()] = text
			sum.Write(text)
		}
	}
	p.version = hex.EncodeToString(sum.Sum(nil)[:6])
	for i := range languages {
		funcs := template.FuncMap{
			"t":     func(key string, args ...any) string { return text(i, key, args...) },
			"asset": func(name string) string { return "/page/" + name + "?v=" + p.version },
			"ms":    time.Time.UnixMilli, "clock": clock, "shown": Shown, "span": span, "ago": func(t time.Time) string { return span(time.Since(t)) },
			"until": time.Until, "modes": modes, "left": left, "latency": latency, "percent": percent, "chart": chart, "rate": rate, "tone": tone, "id": lockID, "modeOf": modeOf,
		}
		p.templates[i] = template.Must(template.New("").Funcs(funcs).ParseFS(embedded, "files/*.html"))
	}
	return p
}

// piece makes a piece of a page.
func (p *files) piece(lang int, name, id string, data any) piece {
	html := p.render(lang, name, data)
	made := piece{ID: id, HTML: template.HTML(html), sum: maphash.Bytes(sumSeed, volatile().ReplaceAll(html, nil))}
	for _, m := range ends().FindAllSubmatch(html, -1) {
		for _, digits := range m[1:] {
			n, _ := strconv.ParseInt(string(digits), 10, 64)
			made.ends = append(made.ends, n)
		}
	}
	return made
}

func (p *files) render(lang int, name string, data any) []byte {
	var b bytes.Buffer
	if err := p.templates[lang].ExecuteTemplate(&b, name, data); err != nil {
		panic(err) // tests make every page
	}
	return b.Bytes()
}
