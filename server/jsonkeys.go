package server

import (
	"encoding/json"
	"strings"
)

// checkKeys returns an error if an object has a key twice, or one that is not in lower case: encoding/json would take the
// last of two, and take "NAME" for "name", so that a proxy that checks requests could be deceived. The keys of
// meta are the client's own. The body is valid JSON.
func checkKeys(body []byte) error {
	type object struct {
		keys map[string]bool
		meta bool
	}
	var open []*object // nil: an array
	var key string     // the last
	var before byte    // the last that is not blank
	for i := 0; i < len(body); i++ {
		c := body[i]
		switch c {
		case ' ', '\t', '\n', '\r':
			continue
		case '{':
			open = append(open, &object{keys: map[string]bool{}, meta: before == ':' && key == "meta" && len(open) > 0})
		case '[':
			open = append(open, nil)
		case '}', ']':
			open = open[:len(open)-1]
		case '"':
			end := endOfString(body, i)
			if o := top(open); o != nil && before != ':' {
				if err := json.Unmarshal(body[i:end], &key); err != nil {
					return err
				}
				if o.keys[key] {
					return invalid("the key %.100q is there twice", key)
				}
				if !o.meta && strings.ContainsFunc(key, func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') }) {
					return invalid("unknown field %.100q", key)
				}
				o.keys[key] = true
			}
			i = end - 1
		}
		before = c
	}
	return nil
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
