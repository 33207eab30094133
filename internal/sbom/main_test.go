package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"runtime/debug"
	"strings"
	"testing"
)

func TestBOM(t *testing.T) {
	sum := "h1:" + strings.Repeat("A", 43) + "="
	info := &buildinfo.BuildInfo{GoVersion: "go1.26.8", Path: "example.org/cmd", Deps: []*debug.Module{
		{Path: "example.org/a", Version: "v1.2.3", Sum: sum},
		{Path: "example.org/b", Version: "v1.0.0", Replace: &debug.Module{Path: "example.org/fork", Version: "v1.0.1"}},
		{Path: "example.org/folder", Version: "(devel)"},
	}}
	text, err := json.Marshal(bom(info, "program", sha256.Sum256(nil)))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"specVersion":"1.5"`, `"name":"program"`, `"content":"e3b0c44298fc1c14`, `"pkg:golang/std@1.26.8"`,
		`"pkg:golang/example.org/a@v1.2.3"`, `"value":"` + sum + `"`, `"pkg:golang/example.org/fork@v1.0.1"`, `"pkg:golang/example.org/folder"`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s lacks %s", text, want)
		}
	}
	if strings.Contains(string(text), "example.org/b") {
		t.Errorf("%s has what was replaced", text)
	}
}
