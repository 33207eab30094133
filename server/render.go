package server

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"hash/maphash"
	"html/template"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/distlock/distlock/driver"
)

// lock is a lock as the page shows it.
type lock struct {
	Name    string
	Mode    driver.Mode
	Limit   int
	Held    int // by so many
	Holders []party
	Waiters []party
	Waiting int // those in the queue; negative: not known
}

// party is one that holds or waits. Its Owner stays in the server.
type party struct {
	owner   string
	Mode    driver.Mode
	Fence   uint64
	Since   time.Time // zero: not known
	Until   time.Time // zero: not known, or without end
	TTL     time.Duration
	Foreign bool
	Program string
	PID     string
	Host    string
	More    []pair
}

type pair struct{ Key, Value string }

// String names the party as a log does.
func (p party) String() string {
	return describe(map[string]string{"program": p.Program, "pid": p.PID, "host": p.Host})
}

// Since returns since when the lock has been held by the holder that has held it longest.
func (l lock) Since() (since time.Time) {
	for _, h := range l.Holders {
		if since.IsZero() || !h.Since.IsZero() && h.Since.Before(since) {
			since = h.Since
		}
	}
	return since
}

// Late reports whether a hold should have been renewed by now: holders do it after a third of the TTL.
func (p party) Late() bool { return !p.Until.IsZero() && p.TTL > 0 && time.Until(p.Until) < p.TTL/3 }

// First returns the holder with the longest life: the lock may be free after that.
func (l lock) First() (first party) {
	for i, h := range l.Holders {
		if i == 0 || h.Until.After(first.Until) {
			first = h
		}
	}
	return first
}

// Others returns how many hold the lock beside First.
func (l lock) Others() int { return l.Held - 1 }

// Unshown returns how many hold the lock beside Holders.
func (l lock) Unshown() int { return l.Held - len(l.Holders) }

// Unnamed returns how many wait beside Waiters.
func (l lock) Unnamed() int { return max(l.Waiting-len(l.Waiters), 0) }

// mostText is the maximum of bytes of a description.
const mostText = 200

// describe names a holder by its metadata.
func describe(meta map[string]string) string {
	who := meta["program"]
	if pid := meta["pid"]; pid != "" {
		who += " pid " + pid
	}
	if host := meta["host"]; host != "" {
		who += " @ " + host
	}
	return short(strings.TrimSpace(who))
}

func short(s string) string {
	if len(s) > mostText {
		s = strings.ToValidUTF8(s[:mostText], "") + "…"
	}
	return s
}

// page has what all pages are made of.
type page struct {
	templates [len(languages)]*template.Template
	assets    map[string][]byte
	version   string // of the assets
}

// piece is a part of a page that is sent again when it has changed.
type piece struct {
	ID   string        `json:"id"`
	HTML template.HTML `json:"html"`
	sum  uint64        // of what is not volatile
}

// volatile matches the parts that page.js keeps up to date by itself: running times, and their bars.
var volatile = regexp.MustCompile(`>[^<]*</time>|width="\d+%"|data-tone="\w+"`)

var sumSeed = maphash.MakeSeed()

var assetTypes = map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}

//go:embed page
var pageFiles embed.FS

func newPage() *page {
	p := &page{assets: map[string][]byte{}}
	sum := sha256.New()
	files, err := pageFiles.ReadDir("page")
	if err != nil {
		panic(err) // they are embedded
	}
	for _, f := range files {
		text, err := pageFiles.ReadFile("page/" + f.Name())
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
			"ms":    time.Time.UnixMilli, "clock": clock, "shown": shown, "span": span, "ago": func(t time.Time) string { return span(time.Since(t)) },
			"until": time.Until, "modes": modes, "left": left, "latency": latency, "percent": percent, "chart": chart, "rate": rate, "tone": tone, "id": lockID, "modeOf": modeOf,
		}
		p.templates[i] = template.Must(template.New("").Funcs(funcs).ParseFS(pageFiles, "page/*.html"))
	}
	return p
}

// piece makes a piece of a page.
func (p *page) piece(lang int, name, id string, data any) piece {
	html := p.render(lang, name, data)
	return piece{id, template.HTML(html), maphash.Bytes(sumSeed, volatile.ReplaceAll(html, nil))}
}

func (p *page) render(lang int, name string, data any) []byte {
	var b bytes.Buffer
	if err := p.templates[lang].ExecuteTemplate(&b, name, data); err != nil {
		panic(err) // tests make every page
	}
	return b.Bytes()
}

// lockID identifies a lock's elements in a page.
func lockID(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:8])
}

// shown returns a text so that all of it can be seen and typed.
func shown(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		s = strconv.Quote(s)
		return s[1 : len(s)-1]
	}
	return s
}

// span formats a time of seconds to days, as page.js does.
func span(d time.Duration) string {
	s := int(max(d, 0).Seconds())
	switch {
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 3600:
		return fmt.Sprintf("%dm %02ds", s/60, s%60)
	case s < 86400:
		return fmt.Sprintf("%dh %02dm", s/3600, s/60%60)
	}
	return fmt.Sprintf("%dd %02dh", s/86400, s/3600%24)
}

// latency formats a short time.
func latency(d time.Duration) string {
	switch {
	case d >= time.Minute:
		return span(d)
	case d >= 10*time.Second:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d >= time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d >= 10*time.Millisecond:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d >= time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
	}
	return fmt.Sprintf("%d µs", d.Microseconds())
}

// rate formats how often something happens in a second.
func rate(perSecond float64) string {
	switch {
	case perSecond >= 10:
		return fmt.Sprintf("%.0f/s", perSecond)
	case perSecond >= .1:
		return fmt.Sprintf("%.1f/s", perSecond)
	case perSecond > 0:
		return fmt.Sprintf("%.0f/min", 60*perSecond)
	}
	return "0"
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// left returns how much of a hold's TTL is left, in percent.
func left(p party) int {
	if p.TTL <= 0 {
		return 0
	}
	return min(max(int(100*time.Until(p.Until)/p.TTL), 0), 100)
}

// tone says how late a renewal is: holders renew after a third of the TTL.
func tone(percent int) string {
	switch {
	case percent < 10:
		return "bad"
	case percent < 34:
		return "late"
	}
	return "good"
}

func percent(share float64) int { return int(100*share + .5) }

func modes(set driver.ModeSet) (all []driver.Mode) {
	for m := driver.Exclusive; m <= driver.Counted; m++ {
		if set.Has(m) {
			all = append(all, m)
		}
	}
	return all
}

// modeOf is the mode of a lock as a key of texts.
func modeOf(m driver.Mode) string {
	if m == 0 {
		return "mode.free"
	}
	return "mode." + m.String()
}

const chartWidth, chartHeight = 120, 28

// chart returns the path of bars that show values over time, and the greatest value.
func chart(values []float64) (c struct {
	Bars string
	Top  float64
}) {
	for _, v := range values {
		c.Top = max(c.Top, v)
	}
	var path strings.Builder
	width := chartWidth / float64(max(len(values), 1))
	for i, v := range values {
		if v > 0 {
			fmt.Fprintf(&path, "M%.1f %dV%.1fh%.1fV%dz", float64(i)*width, chartHeight, (chartHeight-1)*(1-v/c.Top), width*.75, chartHeight)
		}
	}
	c.Bars = path.String()
	return c
}
