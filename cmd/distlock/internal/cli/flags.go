package cli

import (
	"errors"
	"fmt"
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

// flag is the value of a command-line flag.
type flag[T any] struct {
	v     *T
	kind  string // in the help
	parse func(string) (T, error)
}

func (f flag[T]) Set(s string) (err error) {
	v, err := f.parse(s)
	if err == nil {
		*f.v = v
	}
	return err
}

// String formats the default for the help, where 0 stands for none.
func (f flag[T]) String() string {
	if s := fmt.Sprint(*f.v); s != "0" && s != "0s" {
		return s
	}
	return ""
}

func (f flag[T]) Type() string { return f.kind }

// nonEmpty is a flag for a text that is not empty: probably a script's own variable is not set, and the default would
// hide that.
func nonEmpty(s *string) flag[string] {
	return flag[string]{s, "string", func(s string) (string, error) {
		if s == "" {
			return "", errors.New("it is empty; want a value, or no such flag")
		}
		return s, nil
	}}
}

// duration is a flag for a time of 0 or more, or only more.
func duration(d *time.Duration, zero bool) flag[time.Duration] {
	return flag[time.Duration]{d, "duration", func(s string) (time.Duration, error) {
		d, err := time.ParseDuration(s)
		switch {
		case err != nil:
			return 0, errors.New("want a duration such as 500ms, 30s or 5m")
		case d < 0:
			return 0, errors.New("want no negative duration")
		case d == 0 && !zero:
			return 0, errors.New("want more than 0")
		}
		return d, nil
	}}
}

// number is a flag for a whole number from least to most.
func number(n *int, least, most int) flag[int] {
	return flag[int]{n, "int", func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err != nil || n < least || n > most {
			return 0, fmt.Errorf("want a whole number from %d to %d", least, most)
		}
		return n, nil
	}}
}

// choice is a flag for one of a few words.
func choice(s *string, words ...string) flag[string] {
	return flag[string]{s, strings.Join(words, "|"), func(s string) (string, error) {
		if !slices.Contains(words, s) {
			last := len(words) - 1
			return "", fmt.Errorf("want %s or %s", strings.Join(words[:last], ", "), words[last])
		}
		return s, nil
	}}
}

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

func (f pairs) String() string { return "" }

func (f pairs) Type() string { return "key=value" }
