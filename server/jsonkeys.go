package server

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"
)

// checkKeys returns an error if an object has a key twice, or one that is not in lower case: encoding/json would take the
// last of two, and take "NAME" for "name", so that a proxy that checks requests could be deceived. The keys of
// meta are the client's own. It refuses text that is not Unicode, too. The body is valid JSON.
func checkKeys(body []byte) error {
	var open []*object // nil: an array
	var key string     // the last
	var before byte    // the last that is not blank
	for i := 0; i < len(body); i++ {
		c := body[i]
		switch c {
		case ' ', '\t', '\n', '\r':
			continue
		case '{':
			o := &object{}
			if before == ':' && key == "meta" {
				o.meta = map[string]bool{}
			}
			open = append(open, o)
		case '[':
			open = append(open, nil)
		case '}', ']':
			open = open[:len(open)-1]
		case '"':
			end := endOfString(body, i)
			if isHalf(body[i:end]) {
				return invalid("a text has half of a surrogate pair")
			}
			if o := top(open); o != nil && before != ':' {
				key = textOf(body[i:end])
				if err := o.add(key); err != nil {
					return err
				}
			}
			i = end - 1
		}
		before = c
	}
	return nil
}

// object is one that has not ended.
type object struct {
	fields []string        // few: the decoder knows all of them
	meta   map[string]bool // nil: it is not meta
}

func (o *object) add(key string) error {
	switch {
	case o.meta[key] || slices.Contains(o.fields, key):
		return invalid("the key %.100q is there twice", key)
	case o.meta != nil:
		o.meta[key] = true
	case strings.ContainsFunc(key, func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') }):
		return invalid("unknown field %.100q", key)
	default:
		o.fields = append(o.fields, key)
	}
	return nil
}

// isHalf reports whether a string in JSON has half of a surrogate pair. encoding/json would take it for U+FFFD, and
// so two names for one.
func isHalf(quoted []byte) bool {
	return bytes.Contains(quoted, []byte(`\u`)) && strings.ContainsRune(textOf(quoted), utf8.RuneError) &&
		!bytes.ContainsRune(quoted, utf8.RuneError) && !bytes.Contains(bytes.ToLower(quoted), []byte(`\ufffd`))
}

// textOf returns what a string in JSON stands for.
func textOf(quoted []byte) (text string) {
	if !bytes.ContainsRune(quoted, '\\') {
		return string(quoted[1 : len(quoted)-1])
	}
	_ = json.Unmarshal(quoted, &text) // it is valid
	return text
}

func top[T any](stack []*T) *T {
	if len(stack) == 0 {
		return nil
	}
	return stack[len(stack)-1]
}

// endOfString returns the index after the string that begins at i.
func endOfString(body []byte, i int) int {
	for i++; body[i] != '"'; i++ {
		if body[i] == '\\' {
			i++
		}
	}
	return i + 1
}
