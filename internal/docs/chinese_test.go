package docs

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/distlock/distlock/internal/testkit/must"
)

// A page in Chinese says what its English page says: the same blocks in the same order, with the same code, tables, figures, code spans and links.
func TestChinesePagesKeepStep(t *testing.T) {
	texts := documents(t)
	pairs := 0
	for name, text := range texts {
		if english := englishOf(name); english != name {
			pairs++
			if _, ok := texts[english]; !ok {
				t.Errorf("%s: there is no %s", name, english)
				continue
			}
			compare(t, page{english, blocks(texts[english]), texts}, page{name, blocks(text), texts})
		}
	}
	if pairs < 2 {
		t.Errorf("found %d pages in Chinese", pairs)
	}
}

// englishOf returns the English page of a Chinese one, and every other page itself.
func englishOf(name string) string {
	return strings.Replace(strings.Replace(name, ".zh-CN.md", ".md", 1), "docs/zh-CN/", "docs/", 1)
}

// chineseOf returns the Chinese page of an English one, if there is one.
func chineseOf(name string, texts map[string]string) (string, bool) {
	for chinese := range texts {
		if chinese != name && englishOf(chinese) == name {
			return chinese, true
		}
	}
	return "", false
}

type page struct {
	name   string
	blocks []block
	texts  map[string]string
}

func (p page) at(i int) string {
	if i < len(p.blocks) {
		return fmt.Sprintf("%s:%d (%s)", p.name, p.blocks[i].line, p.blocks[i].kind)
	}
	return p.name + " (its end)"
}

func compare(t *testing.T, english, chinese page) {
	for _, p := range []page{english, chinese} {
		if len(p.blocks) < 2 || !slices.Contains(facts(t, p, p.blocks[1].text), "a link to "+otherLanguage) {
			t.Errorf("%s: does not link to the page in the other language before its first paragraph", p.name)
		}
	}
	for i := range max(len(english.blocks), len(chinese.blocks)) {
		if i >= len(english.blocks) || i >= len(chinese.blocks) || english.blocks[i].kind != chinese.blocks[i].kind {
			t.Errorf("%s and %s are not the same part of the page: one is missing, or too many", english.at(i), chinese.at(i))
			return // all that follows is shifted
		}
		en, zh := english.blocks[i], chinese.blocks[i]
		var differs []string
		switch en.kind {
		case "code":
			differs = difference(strings.Split(code(en.text), "\n"), strings.Split(code(zh.text), "\n"))
		case "row":
			enCells, zhCells := cells(en.text), cells(zh.text)
			if len(enCells) != len(zhCells) {
				differs = []string{fmt.Sprintf("%d columns and %d", len(enCells), len(zhCells))}
				break
			}
			for c := range enCells {
				for _, d := range difference(facts(t, english, enCells[c]), facts(t, chinese, zhCells[c])) {
					differs = append(differs, fmt.Sprintf("column %d: %s", c+1, d))
				}
			}
		default:
			differs = difference(facts(t, english, en.text), facts(t, chinese, zh.text))
		}
		for _, d := range differs {
			t.Errorf("%s and %s: %s", english.at(i), chinese.at(i), d)
		}
	}
}

// difference says which strings are in one list only.
func difference(english, chinese []string) []string {
	var differs []string
	for _, s := range english {
		if !slices.Contains(chinese, s) {
			differs = append(differs, "only in English: "+s)
		}
	}
	for _, s := range chinese {
		if !slices.Contains(english, s) {
			differs = append(differs, "only in Chinese: "+s)
		}
	}
	return differs
}

// block is a part of a page that stands alone: a heading, a paragraph, a list item, a row of a table, a block of code.
type block struct {
	kind, text string
	line       int
	soft       bool // the text has several lines
}

var (
	headingLine = regexp.MustCompile(`^(#+) +(.*)`)
	itemLine    = regexp.MustCompile(`^(?:-|\d+\.) +(.*)`)
)

// blocks returns the blocks of a page. HTML comments are left out.
func blocks(text string) []block {
	var found []block
	var fenced, comment bool
	open := false // the last block goes on in the next line
	for i, line := range strings.Split(text, "\n") {
		add := func(kind, text string, goesOn bool) {
			found = append(found, block{kind: kind, text: text, line: i + 1})
			open = goesOn
		}
		last := len(found) - 1
		switch {
		case strings.HasPrefix(line, "```"):
			if fenced = !fenced; fenced {
				add("code", "", false)
			}
		case fenced:
			found[last].text += line + "\n"
		case comment || strings.HasPrefix(line, "<!--"):
			comment = !strings.Contains(line, "-->")
			open = false
		case strings.TrimSpace(line) == "":
			open = false
		case open && found[last].kind == "code":
			found[last].text += line + "\n"
		case !open && strings.HasPrefix(line, "    "):
			add("code", line+"\n", true)
		case headingLine.MatchString(line):
			m := headingLine.FindStringSubmatch(line)
			add("heading of level "+fmt.Sprint(len(m[1])), m[2], false)
		case itemLine.MatchString(line):
			add("list item", itemLine.FindStringSubmatch(line)[1], true)
		case strings.HasPrefix(line, "|"):
			add("row", line, false)
		case open:
			found[last].text += " " + strings.TrimSpace(line)
			found[last].soft = true
		default:
			add("paragraph", line, true)
		}
	}
	return found
}

func cells(row string) []string {
	return strings.Split(strings.Trim(row, "| "), " | ")
}

// code returns a block of code without its comments, which are translated.
func code(text string) string {
	text = regexp.MustCompile(`(?m)(^|\s+)# .*$|\s{2,}-- .*$`).ReplaceAllString(text, "")
	return flat(text)
}

var (
	codeSpan  = regexp.MustCompile("`[^`]+`")
	docLink   = regexp.MustCompile(`\]\(([^)#\s]*)(?:#([^)\s]*))?\)`)
	factWords = regexp.MustCompile(`\d+(?:[.,]\d+)*|\b[SFUN]\b|–`) // figures, and verdicts of the guarantees
)

// facts returns what a translation keeps: code spans, figures, verdicts, and links, which lead to the page in the same language.
func facts(t *testing.T, p page, text string) []string {
	found := codeSpan.FindAllString(text, -1)
	text = codeSpan.ReplaceAllString(text, "")
	for _, m := range docLink.FindAllStringSubmatch(text, -1) {
		found = append(found, "a link to "+p.target(t, m[1], m[2]))
	}
	text = docLink.ReplaceAllString(text, "]")
	found = append(found, factWords.FindAllString(text, -1)...)
	slices.Sort(found)
	return slices.Compact(found)
}

const otherLanguage = "this page in the other language"

// target names where a link leads in the words of the Chinese page: a heading by its number, since its words are translated.
func (p page) target(t *testing.T, file, anchor string) string {
	name := p.name
	if file != "" {
		name = path.Join(path.Dir(p.name), file)
	}
	heading := ""
	if anchor != "" {
		i := slices.Index(anchors(p.texts[name]), anchor)
		if i < 0 {
			t.Errorf("%s: %s has no heading #%s, but %q", p.name, name, anchor, anchors(p.texts[name]))
		}
		heading = fmt.Sprintf(", heading %d", i+1)
	}
	sister, ok := chineseOf(name, p.texts)
	switch {
	case file != "" && name != p.name && englishOf(name) == englishOf(p.name):
		return otherLanguage + heading
	case ok && p.name == englishOf(p.name):
		return sister + heading
	}
	return name + heading
}

// anchors returns the names that GitHub gives to the headings of a page.
func anchors(text string) []string {
	var found []string
	for _, b := range blocks(text) {
		if strings.HasPrefix(b.kind, "heading") {
			found = append(found, strings.Map(func(r rune) rune {
				switch {
				case r == ' ':
					return '-'
				case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
					return unicode.ToLower(r)
				}
				return -1
			}, b.text))
		}
	}
	return found
}

// notBold returns a text that Markdown does not show bold: punctuation stands inside of the asterisks, and Han outside.
func notBold(text string) string {
	ends := regexp.MustCompile(`[，。；：？！、）”]$`)
	begins := regexp.MustCompile(`^[（“]`)
	han := regexp.MustCompile(`^\p{Han}`)
	parts := strings.Split(text, "**")
	for i := 1; i < len(parts)-1; i += 2 {
		before := []rune(" " + parts[i-1])
		if ends.MatchString(parts[i]) && han.MatchString(parts[i+1]) ||
			begins.MatchString(parts[i]) && han.MatchString(string(before[len(before)-1:])) {
			return parts[i]
		}
	}
	return ""
}

// typesetting has what is wrong in a Chinese text whose code spans are `x`.
var typesetting = map[string]*regexp.Regexp{
	"no space between Chinese and Latin":        regexp.MustCompile("\\p{Han}[A-Za-z0-9`]|[A-Za-z0-9`%]\\p{Han}"),
	"half-width punctuation in Chinese":         regexp.MustCompile(`\p{Han} ?[,;:?!()]|[,;:?!()] ?\p{Han}|\p{Han}\.`),
	"a space beside full-width punctuation":     regexp.MustCompile(` [，。；：？！、（）“”]|[，。；：？！、（）“”] `),
	"a space between two Chinese characters":    regexp.MustCompile(`\p{Han} +\p{Han}`),
	"a bracket or quote without its other half": regexp.MustCompile(`（[^）]*$|^[^（]*）|“[^”]*$`),
}

func typeset(t *testing.T, name string, line int, text string) {
	for rule, pattern := range typesetting {
		if found := pattern.FindString(text); found != "" {
			t.Errorf("%s:%d: %q: %s", name, line, found, rule)
		}
	}
}

// Chinese is set in full-width punctuation, with a space between Han characters and Latin ones. A paragraph is one line: a line break in it would be shown as a space.
func TestChinesePagesAreTypeset(t *testing.T) {
	for name, text := range documents(t) {
		if englishOf(name) == name {
			continue
		}
		for _, b := range blocks(text) {
			if b.kind == "code" {
				continue
			}
			if b.soft {
				t.Errorf("%s:%d: the paragraph goes on in the next line", name, b.line)
			}
			if found := notBold(b.text); found != "" {
				t.Errorf("%s:%d: %q is not shown bold: keep the punctuation outside of the asterisks", name, b.line, found)
			}
			for _, cell := range cells(b.text) {
				cell = strings.ReplaceAll(codeSpan.ReplaceAllString(cell, "`x`"), "**", "")
				typeset(t, name, b.line, strings.NewReplacer("![", "", "[", "").Replace(docLink.ReplaceAllString(cell, "")))
			}
		}
	}
}

// serverTexts are the files with the Chinese texts of the server's page.
func serverTexts(t *testing.T) map[string]string {
	texts := map[string]string{}
	for _, name := range []string{"server/internal/page/texts.go"} {
		text := must.Get(os.ReadFile(filepath.Join(root, name)))(t)
		texts[name] = string(text)
	}
	return texts
}

func TestChineseTextsOfTheServerAreTypeset(t *testing.T) {
	number := regexp.MustCompile(`%(\[\d\])?(d|\.1f)`)
	for name, text := range serverTexts(t) {
		for i, line := range strings.Split(text, "\n") {
			for _, m := range regexp.MustCompile(`"([^"]*)"`).FindAllStringSubmatch(line, -1) {
				if regexp.MustCompile(`\p{Han}`).MatchString(m[1]) {
					text := codeSpan.ReplaceAllString(number.ReplaceAllString(m[1], "1"), "`x`")
					typeset(t, name, i+1, strings.ReplaceAll(text, "%s", "…"))
				}
			}
		}
	}
}

// The Chinese texts use the terms that chinese.md lists, and no term that it rejects.
func TestChineseTerms(t *testing.T) {
	texts := maps.Clone(documents(t))
	_, table, ok := strings.Cut(string(must.Get(os.ReadFile("chinese.md"))(t)), "| English | Chinese | not |\n")
	if !ok {
		t.Fatal("chinese.md has no table of terms")
	}
	for name := range texts {
		if englishOf(name) == name {
			delete(texts, name)
		}
	}
	maps.Copy(texts, serverTexts(t))
	table, _, _ = strings.Cut(table, "\n\n")
	rejected := 0
	for row := range strings.Lines(table) {
		columns := strings.Split(strings.TrimSpace(row), "|")
		for _, no := range strings.Split(columns[3], "、") {
			if no = strings.TrimSpace(no); no == "" || no == "---" {
				continue
			}
			rejected++
			for name, text := range texts {
				for i, line := range strings.Split(text, "\n") {
					if strings.Contains(line, no) {
						t.Errorf("%s:%d: %s is %s, not %s", name, i+1, strings.TrimSpace(columns[1]), strings.TrimSpace(columns[2]), no)
					}
				}
			}
		}
	}
	if rejected == 0 {
		t.Error("no term is rejected")
	}
}
