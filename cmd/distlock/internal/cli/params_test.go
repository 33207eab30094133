package cli

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
)

// Each parameter of a URL that a backend knows is on the backend's page, or among those of all backends. PostgreSQL's are not
// asked for: what pglock does not know it hands to the server.
func TestParametersAreDocumented(t *testing.T) {
	const docs = "../../../../docs/"
	pages := map[string]string{
		"redis": "redis", "rediss": "redis", "redis+unix": "redis", "redis+sentinel": "redis", "redis+cluster": "redis", "etcd": "etcd", "etcds": "etcd",
		"zk": "zookeeper", "zks": "zookeeper", "mysql": "mysql", "http": "http", "https": "http", "http+unix": "http",
		"s3": "s3", "kube": "kubernetes", "sqlite": "sqlite", "quorum": "redis",
	}
	shared := string(must.Get(os.ReadFile(docs + "README.md"))(t))
	for scheme, page := range pages {
		text := string(must.Get(os.ReadFile(docs+"backends/"+page+".md"))(t)) + shared
		rawURL := scheme + "://host/place?bogusness=1&create=true"
		switch scheme {
		case "kube", "redis+unix", "http+unix", "sqlite":
			rawURL = strings.Replace(rawURL, "host", "", 1)
		case "redis", "rediss", "redis+cluster":
			rawURL = strings.Replace(rawURL, "place", "", 1)
		}
		_, err := driver.Open(t.Context(), rawURL)
		if err == nil {
			t.Errorf("%s was opened", rawURL)
			continue
		}
		known := regexp.MustCompile(`unknown parameter "bogusness"; known: ([^;\n]*)`).FindStringSubmatch(err.Error())
		if known == nil {
			t.Errorf("%s: %v; want the parameters that are known", rawURL, err)
			continue
		}
		for _, parameter := range strings.Split(known[1], ", ") {
			if !regexp.MustCompile("[`?&(]" + parameter + "[`=]").MatchString(text) {
				t.Errorf("%s://: %s is neither in docs/backends/%s.md nor in docs/README.md", scheme, parameter, page)
			}
		}
	}
}
