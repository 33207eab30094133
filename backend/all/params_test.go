package all_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
)

// Each parameter that a URL may have is in the documentation: on the page of its backend, or among those that all have. PostgreSQL
// leaves parameters that it does not know to pgx.
func TestParametersAreDocumented(t *testing.T) {
	t.Parallel()
	page := func(path string) string { return string(must.Get(os.ReadFile("../../docs/" + path))(t)) }
	shared, known := page("README.md"), regexp.MustCompile(`; known: ([a-zA-Z_, ]+)`)
	for url, of := range map[string]string{
		"redis://h": "redis", "redis+unix:///x": "redis", "rediss+cluster://h": "redis", "rediss+sentinel://h/x": "redis",
		"quorum:": "redis", "etcds://h": "etcd", "zks://h": "zookeeper", "mysql://h/x": "mysql", "sqlite:/x/y": "sqlite",
		"s3://x": "s3", "kube:///x": "kubernetes", "https://h": "http",
	} {
		_, err := driver.Open(t.Context(), url+"?unheard=1")
		if err == nil {
			t.Errorf("%s takes any parameter", url)
			continue
		}
		found := known.FindStringSubmatch(err.Error())
		if found == nil {
			t.Errorf("%s does not say which parameters it knows: %v", url, err)
			continue
		}
		text := shared + page("backends/"+of+".md")
		for _, p := range strings.Split(found[1], ", ") {
			if !regexp.MustCompile("[`?&]" + p + "[`=]").MatchString(text) {
				t.Errorf("%s: parameter %s is neither in docs/README.md nor in docs/backends/%s.md", url, p, of)
			}
		}
	}
}
