package page

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/distlock/distlock/internal/testkit/must"
)

// The rows are the same as in the document, in each language.
func TestGuarantees(t *testing.T) {
	t.Parallel()
	for lang, words := range []struct{ file, asAbove, comma string }{
		{"../../../docs/guarantees.md", "as above", ", "},
		{"../../../docs/zh-CN/guarantees.md", "同上", "，"},
	} {
		doc := must.Get(os.ReadFile(words.file))(t)
		for _, g := range guarantees {
			r := g.row[lang]
			row := fmt.Sprintf("| %s | %s | %s | %s |\n", r.Backend, r.Two, r.Back, r.Dead)
			if r.Backend == redisReplicated[lang].Backend {
				row = strings.ReplaceAll(row, redisAlone[lang].Two+words.comma, words.asAbove+words.comma)
				row = strings.ReplaceAll(row, redisAlone[lang].Back, words.asAbove)
			}
			if !strings.Contains(string(doc), row) {
				t.Errorf("%s has no row %s", words.file, row)
			}
		}
	}
	if guaranteeOf("redis://h:6379/0", 0).Two != redisAlone[0].Two || guaranteeOf("shard(a)", 1).Two != "" || guaranteeOf("redis+cluster://a", 1).Two != redisReplicated[1].Two ||
		guaranteeOf("etcd://h:2379/locks/", 0).Two == "" {
		t.Error("wrong row")
	}
}

// Every text has both languages, and is used.
func TestTexts(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	files, _ := embedded.ReadDir("files")
	for _, f := range files {
		text, _ := embedded.ReadFile("files/" + f.Name())
		all.Write(text)
	}
	for _, name := range []string{"../seen/seen.go", "view.go", "page.go"} {
		text := must.Get(os.ReadFile(name))(t)
		all.Write(text)
	}
	for key, text := range texts {
		prefix, _, _ := strings.Cut(key, ".")
		made := prefix == "mode" || prefix == "incident"
		if text[0] == "" || text[1] == "" || !made && !strings.Contains(all.String(), `"`+key+`"`) {
			t.Errorf("%s: %q", key, text)
		}
	}
}
