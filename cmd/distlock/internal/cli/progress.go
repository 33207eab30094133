package cli

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
)

// terminalSize returns a function that returns the columns and lines of the terminal that the output of
// the program goes to; nil if there is none.
func terminalSize(w io.Writer) func() (width, height int) {
	if p, ok := w.(*printer); ok {
		w = p.w
	}
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return func() (width, height int) {
		if width, height, err := term.GetSize(int(f.Fd())); err == nil && width > 0 && height > 0 {
			return width, height
		}
		return 80, 24
	}
}

// terminalWidth returns a function that returns the width of a terminal, or nil if w is none.
func terminalWidth(w io.Writer) func() int {
	size := terminalSize(w)
	if size == nil {
		return nil
	}
	return func() int {
		width, _ := size()
		return width
	}
}

// progress is one line of a terminal that is updated. Without a terminal, it shows nothing.
type progress struct {
	w     io.Writer
	width func() int
}

func newProgress(w io.Writer) progress { return progress{w, terminalWidth(w)} }

// show replaces the line.
func (p progress) show(format string, args ...any) {
	if p.width != nil {
		fmt.Fprint(p.w, "\r"+truncate(fmt.Sprintf(format, args...), p.width()-1)+"\x1b[K")
	}
}

// clear removes the line.
func (p progress) clear() {
	if p.width != nil {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
