// Package api lists the exported declarations of this module's packages, so that a
// diff of the listing shows every change of the public API.
package api

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// Listing returns the API of every public package below root, package by package, a
// declaration a paragraph.
func Listing(root string) (string, error) {
	dirs, err := packages(root)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, dir := range dirs {
		if err := listPackage(&b, root, dir); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}

// packages finds the folders with Go files that users can import.
func packages(root string) ([]string, error) {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains([]string{"internal", "cmd", "examples", "bench", "interop", "proof", "testdata", ".git"}, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		dir := filepath.Dir(path)
		if isSource(d) && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
		return nil
	})
	return dirs, err
}

func isSource(d fs.DirEntry) bool {
	return strings.HasSuffix(d.Name(), ".go") && !strings.HasSuffix(d.Name(), "_test.go")
}

func listPackage(b *strings.Builder, root, dir string) error {
	fset := token.NewFileSet()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return err
	}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution) // without comments
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	rel, err := filepath.Rel(root, dir)
	if err != nil {
		return err
	}
	p, err := doc.NewFromFiles(fset, files, filepath.ToSlash(rel))
	if err != nil {
		return err
	}
	fmt.Fprintf(b, "package %s // %s\n\n", p.Name, p.ImportPath)
	lister{b, fset}.pkg(p)
	return nil
}

type lister struct {
	b    *strings.Builder
	fset *token.FileSet
}

func (l lister) pkg(p *doc.Package) {
	l.values(p.Consts)
	l.values(p.Vars)
	l.funcs(p.Funcs)
	for _, t := range p.Types {
		l.decl(t.Decl)
		l.values(t.Consts)
		l.values(t.Vars)
		l.funcs(t.Funcs)
		l.funcs(t.Methods)
	}
}

func (l lister) values(values []*doc.Value) {
	for _, v := range values {
		l.decl(v.Decl)
	}
}

func (l lister) funcs(funcs []*doc.Func) {
	for _, f := range funcs {
		f.Decl.Body = nil
		l.decl(f.Decl)
	}
}

// decl prints a declaration.
func (l lister) decl(d ast.Decl) {
	var out bytes.Buffer
	if err := (&printer.Config{Mode: printer.UseSpaces, Tabwidth: 4}).Fprint(&out, l.fset, d); err != nil {
		fmt.Fprintf(&out, "unprintable: %v", err)
	}
	for _, line := range strings.Split(out.String(), "\n") {
		if strings.TrimSpace(line) != "" {
			l.b.WriteString(line + "\n")
		}
	}
	l.b.WriteString("\n")
}
