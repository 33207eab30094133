package redislock

import (
	"flag"
	"fmt"
	"testing"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
)

var printed = flag.String("script", "", "print the script of this name whole, or the names of all for ?")

// allScripts returns each script under a name.
func allScripts() map[string]*script {
	all := map[string]*script{
		"string_inspect": inspectString, "redisson_inspect": inspectHashes, "string_release_apart": releaseApart,
		"string_list": listStrings, "redisson_list_strings": listPermits, "redisson_list_hashes": listHashes,
	}
	for _, mode := range allModes {
		for layout, s := range map[string]modeScripts{"string_": stringScripts()[mode], "redisson_": redissonScripts()[mode]} {
			all[layout+mode.String()+"_acquire"], all[layout+mode.String()+"_renew"], all[layout+mode.String()+"_release"] = s.acquire, s.renew, s.release
		}
	}
	return all
}

// go test -run PrintScript -script string_exclusive_acquire prints a script as it is sent where messages are not sharded.
func TestPrintScript(t *testing.T) {
	for name, sc := range allScripts() {
		text := sc.sources[redisconn.PubSubClassic]().text
		switch *printed {
		case "?":
			fmt.Println(name)
		case name:
			fmt.Print(text)
		}
		if text == "" {
			t.Errorf("%s is empty", name)
		}
	}
}
