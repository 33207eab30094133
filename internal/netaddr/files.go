package netaddr

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
)

// Files are files that may be replaced, and what is made of them. It is safe for concurrent use.
type Files[T any] struct {
	files []File
	use   func(contents [][]byte) (T, error)

	mu      sync.Mutex
	read    [][]byte // nil: none yet
	value   T
	problem error
	told    string // the problem that Current has reported last
}

// File is a path with the name of its parameter or flag, for errors. Without a path there is no file, and its
// contents are Text.
type File struct {
	Name, Path string
	Text       []byte
}

// OpenFiles reads the files, and makes of their contents what is used. It fails with the errors of all files that can't be read,
// or with the error of use.
func OpenFiles[T any](files []File, use func(contents [][]byte) (T, error)) (*Files[T], error) {
	f := &Files[T]{files: files, use: use}
	_, err := f.Now()
	return f, err
}

// Now reads the files, and returns what was made of them. While they can't be used, as during a replacement, it returns what was made
// of the last ones that could, and the reason.
func (f *Files[T]) Now() (T, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.problem = f.update()
	return f.value, f.problem
}

// Current is Now, and reports a problem when it is another one than before.
func (f *Files[T]) Current(report func(error)) T {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.problem = f.update()
	text := fmt.Sprint(f.problem)
	if f.problem != nil && text != f.told {
		report(f.problem)
	}
	f.told = text
	return f.value
}

// Last returns the last result of Now.
func (f *Files[T]) Last() (T, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.value, f.problem
}

// update reads the files. mu is held.
func (f *Files[T]) update() error {
	now, errs := make([][]byte, len(f.files)), []error(nil)
	for i, file := range f.files {
		if now[i] = file.Text; file.Path == "" {
			continue
		}
		b, err := os.ReadFile(file.Path)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", file.Name, err))
		}
		now[i] = b
	}
	if err := errors.Join(errs...); err != nil || f.read != nil && slices.EqualFunc(now, f.read, bytes.Equal) {
		return err
	}
	value, err := f.use(now)
	if err != nil {
		return err
	}
	f.read, f.value = now, value
	return nil
}
