// Command sbom writes which modules a Go program was built of, as CycloneDX 1.5:
//
//	go run ./internal/sbom dist/distlock >dist/distlock.cdx.json
//
// It reads what the linker wrote into the program, so it lists what was linked, and not what go.mod allows. The
// same program gives the same bytes.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "sbom: want the path of one Go program")
		os.Exit(64)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func write(path string) error {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return err
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	out.SetEscapeHTML(false)
	return out.Encode(bom(info, filepath.Base(path), sha256.Sum256(program)))
}

type document struct {
	Format     string      `json:"bomFormat"`
	Spec       string      `json:"specVersion"`
	Version    int         `json:"version"`
	Metadata   metadata    `json:"metadata"`
	Components []component `json:"components"`
}

type metadata struct {
	Component  component  `json:"component"`
	Properties []property `json:"properties"`
}

type component struct {
	Type    string `json:"type"`
	Ref     string `json:"bom-ref,omitempty"`
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	PURL    string `json:"purl,omitempty"`
	Hashes  []hash `json:"hashes,omitempty"`

	Properties []property `json:"properties,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

func bom(info *buildinfo.BuildInfo, name string, sum [sha256.Size]byte) document {
	program := component{Type: "application", Name: name, Version: info.Main.Version, Ref: info.Path,
		Hashes: []hash{{"SHA-256", hex.EncodeToString(sum[:])}}}
	d := document{Format: "CycloneDX", Spec: "1.5", Version: 1, Metadata: metadata{Component: program}}
	for _, s := range info.Settings {
		d.Metadata.Properties = append(d.Metadata.Properties, property{"go:build:" + s.Key, s.Value})
	}
	d.Components = append(d.Components, component{Type: "library", Name: "std", Version: info.GoVersion, Ref: "std",
		PURL: "pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go")})
	for _, m := range info.Deps {
		d.Components = append(d.Components, library(m))
	}
	return d
}

// library describes a module, or what was built in its place. The module's hash in go.sum is of its files' hashes, and no
// hash in the sense of CycloneDX.
func library(m *debug.Module) component {
	if m.Replace != nil {
		m = m.Replace
	}
	c := component{Type: "library", Name: m.Path, Version: m.Version, Ref: m.Path + "@" + m.Version, PURL: "pkg:golang/" + m.Path}
	if m.Version != "(devel)" { // a folder of the workspace
		c.PURL += "@" + m.Version
	}
	if b, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:")); err == nil && len(b) == sha256.Size {
		c.Properties = []property{{"go:sum", m.Sum}}
	}
	return c
}
