package cli

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// text is a string flag that knows whether it was given.
type text struct {
	s   string
	set bool
}

func (f *text) Set(s string) error { f.s, f.set = s, true; return nil }

func (f *text) String() string { return f.s }

func (f *text) Type() string { return "string" }

// duration is a flag for a time of 0 or more, or of more than 0 if above is set.
type duration struct {
	d     *time.Duration
	above bool
}

func (f duration) Set(s string) error {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return errors.New("want a duration such as 500ms, 30s or 5m")
	case d < 0:
		return errors.New("want no negative duration")
	case d == 0 && f.above:
		return errors.New("want more than 0")
	}
	*f.d = d
	return nil
}

func (f duration) String() string {
	if f.d == nil || *f.d == 0 {
		return ""
	}
	return f.d.String()
}

func (f duration) Type() string { return "duration" }

// number is a flag for a whole number from min to max.
type number struct {
	n        *int
	min, max int
}

func (f number) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < f.min || n > f.max {
		return fmt.Errorf("want a whole number from %d to %d", f.min, f.max)
	}
	*f.n = n
	return nil
}

func (f number) String() string {
	if f.n == nil || *f.n == 0 {
		return ""
	}
	return strconv.Itoa(*f.n)
}

func (f number) Type() string { return "int" }

// choice is a flag for one of a few words.
type choice struct {
	s     *string
	words []string
}

func (f choice) Set(s string) error {
	if !slices.Contains(f.words, s) {
		return fmt.Errorf("want %s or %s", strings.Join(f.words[:len(f.words)-1], ", "), f.words[len(f.words)-1])
	}
	*f.s = s
	return nil
}

func (f choice) String() string {
	if f.s == nil {
		return ""
	}
	return *f.s
}

func (f choice) Type() string { return strings.Join(f.words, "|") }

// pairs is a flag for key=value that may be repeated.
type pairs map[string]string

func (f pairs) Set(s string) error {
	key, value, ok := strings.Cut(s, "=")
	if !ok || key == "" {
		return errors.New("want key=value")
	}
	f[key] = value
	return nil
}

func (f pairs) String() string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(f)) {
		all = append(all, key+"="+f[key])
	}
	return strings.Join(all, ",")
}

func (f pairs) Type() string { return "key=value" }
