package redislock

import (
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/internal/testkit/must"
)

var update = flag.Bool("update", false, "write scripts/composed anew")

// allScripts returns each script under the name of its file in scripts/composed.
func allScripts() map[string]*script {
	all := map[string]*script{
		"string_inspect": inspectString, "redisson_inspect": inspectHashes, "string_release_apart": releaseApart,
		"string_list": listStrings, "redisson_list_strings": listPermits, "redisson_list_hashes": listHashes,
	}
	add := func(name string, ofString, ofRedisson *script) {
		if slices.Equal(ofString.parts, ofRedisson.parts) {
			all[name] = ofString
			return
		}
		all["string_"+name], all["redisson_"+name] = ofString, ofRedisson
	}
	for _, mode := range allModes {
		s, r := stringScripts()[mode], redissonScripts()[mode]
		add(mode.String()+"_acquire", s.acquire, r.acquire)
		add(mode.String()+"_renew", s.renew, r.renew)
		add(mode.String()+"_release", s.release, r.release)
	}
	return all
}

// The files in scripts/composed are the scripts that are sent, whole. With -update they are written anew.
func TestComposedScripts(t *testing.T) {
	const dir = "scripts/composed"
	want := map[string]string{}
	for name, sc := range allScripts() {
		want[name+".lua"] = "-- " + name + ", as it is sent where messages are not sharded. Generated: go test -run ComposedScripts -args -update\n" +
			sc.sources[redisconn.PubSubClassic]().text
	}
	if *update {
		must.OK(t, os.RemoveAll(dir))
		must.OK(t, os.MkdirAll(dir, 0o755))
		for name, text := range want {
			must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
		}
	}
	files := must.Get(os.ReadDir(dir))(t)
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
		if text, err := os.ReadFile(filepath.Join(dir, f.Name())); err != nil || string(text) != want[f.Name()] {
			t.Errorf("%s is not the script that is sent: run it with -args -update (%v)", f.Name(), err)
		}
	}
	if sent := slices.Sorted(maps.Keys(want)); !slices.Equal(names, sent) {
		t.Errorf("there are %q, and sent are %q", names, sent)
	}
}
