package all_test

import (
	"context"
	"flag"
	"math/rand/v2"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
)

var urlSeed = flag.Uint64("url.seed", 0, "seed of the test with odd URLs; 0: another one each time")

const password = "hunter2"

// openNothing opens a URL without a network: no URL makes it panic, or shows a password in an error.
func openNothing(t *testing.T, raw string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	b, err := driver.Open(ctx, raw)
	if err == nil {
		if strings.Contains(b.Caps().Name, password) {
			t.Errorf("%q: the name %q has the password", raw, b.Caps().Name)
		}
		b.Close()
		return
	}
	if strings.Contains(err.Error(), password) {
		t.Errorf("%q: %v", raw, err)
	}
	if len(err.Error()) > 3000+10*len(raw) {
		t.Errorf("%q: an error of %d bytes", raw, len(err.Error()))
	}
}

// harmless says whether a URL names no file that Open would make.
func harmless(raw string) bool {
	return !strings.Contains(strings.ToLower(raw), "sqlite")
}

func FuzzURLs(f *testing.F) {
	for _, scheme := range driver.Schemes() {
		f.Add(scheme + "://u:" + password + "@h:1/x?timeout=1s&prefix=a")
	}
	f.Add("quorum:?member=redis%3A%2F%2Fu:" + password + "%40h&member=%zz")
	f.Fuzz(func(t *testing.T, raw string) {
		if harmless(raw) {
			openNothing(t, raw)
		}
	})
}

var (
	urlHosts  = []string{"h", "127.0.0.1:1", "[::1]:2", "a,b,c:7", "a,,b", "h:0", "h:99999", "h:x", "", "%zz", "é", " ", "h\x00", "[::", "\xff"}
	urlPaths  = []string{"", "/", "/0", "/-1", "/a/b", "//", "/../..", "/%00", "/%zz", "/é", "/a?b", "#f", "/" + strings.Repeat("x", 70_000)}
	urlParams = []string{
		"timeout", "prefix", "layout", "pubsub", "replicas", "replica_timeout", "scripts", "ca", "cert", "key", "servername", "sentinel_user", "sentinel_password",
		"sentinel_tls", "db", "acl", "strategy", "level", "table", "create", "pooler", "max_connections", "onewriter", "name", "tls", "socket", "readTimeout",
		"writeTimeout", "allowCleartextPasswords", "sslmode", "sslrootcert", "host", "password_file", "member", "group", "search_path", "no such", "",
	}
	urlValues = []string{
		"", "0", "-1", "1", "99999999999999999999", "1s", "-1s", "1e9h", "true", "TRUE", "verify-full", "require", "row", "session", "transaction", "creator", "off", "redisson",
		"app:", "{", "}", "\x00", "\xff", "'", `"`, "`", "../../etc/passwd", "/dev/null", "%", "%zz", "a b", "é🔒", "redis://u:p@h", strings.Repeat("y", 70_000),
	}
)

// oddURL makes a URL of a scheme, of which nearly all is odd.
func oddURL(rnd *rand.Rand, scheme, dir string) string {
	pick := func(of []string) string { return of[rnd.IntN(len(of))] }
	var query []string
	for range rnd.IntN(4) {
		value := url.QueryEscape(pick(urlValues))
		if rnd.IntN(8) == 0 {
			value = pick(urlValues)
		}
		query = append(query, pick(urlParams)+"="+value)
	}
	if scheme == "sqlite" {
		return "sqlite:" + filepath.Join(dir, "x.db") + "?" + strings.Join(query, "&")
	}
	user := []string{"", "u:" + password + "@", ":" + password + "@", password + "@", "u:" + password + "%2F%zz@", "u:" + password + ":#/?@", "u:%00" + password + "@"}
	return scheme + "://" + pick(user) + pick(urlHosts) + pick(urlPaths) + "?" + strings.Join(query, "&")
}

func TestOddURLs(t *testing.T) {
	t.Parallel()
	seed := *urlSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	rnd, dir := rand.New(rand.NewPCG(seed, 0)), t.TempDir()
	for _, scheme := range driver.Schemes() {
		for range 60 {
			openNothing(t, oddURL(rnd, scheme, dir))
		}
	}
	if t.Failed() {
		t.Logf("again: -url.seed=%d", seed)
	}
}
