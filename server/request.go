package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/server/internal/seen"
)

// readBefore bounds until when the server waits for data of the client; zero: it does not.
func readBefore(w http.ResponseWriter, t time.Time) {
	_ = http.NewResponseController(w).SetReadDeadline(t) // not supported in tests
}

// body reads the body of the request, which has at most limit bytes.
func (ex *exchange) body(limit int64) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(ex.w, ex.r.Body, limit))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, problem(http.StatusRequestEntityTooLarge, httpwire.Invalid, "the body has more than %d bytes", limit)
	case err != nil:
		return nil, problem(http.StatusBadRequest, httpwire.Unsent, "the body did not arrive: %v", err)
	case !utf8.Valid(body):
		return nil, invalid("the body is not UTF-8")
	}
	readBefore(ex.w, time.Time{}) // the deadline stays if the body did not arrive
	if ex.who != noIdentity {
		ex.s.connections.letIn(ex.r.Context())
	}
	return body, nil
}

// decode reads the body of the request, a JSON object of at most limit bytes.
func (ex *exchange) decode(v any, limit int64) error {
	body, err := ex.body(limit)
	if err != nil {
		return err
	}
	return decode(body, v)
}

// decode reads a JSON object, which must be all of a text in UTF-8.
func decode(text []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return invalid("the body is not as described in /v1/openapi.json: %s", seen.Short(jsonError(err)))
	}
	if _, err := d.Token(); err != io.EOF {
		return invalid("the body has text after the JSON object")
	}
	return checkKeys(text)
}

// noBody refuses a request with a body. A call that waits must not leave a body unread, since the end of the
// client would not be noticed.
func (ex *exchange) noBody() error {
	if ex.r.ContentLength != 0 {
		return invalid("there is a body: want all in the path and the query; POST /v1/acquire has one")
	}
	return nil
}

// jsonError returns what is wrong with a body, without the names of Go's types.
func jsonError(err error) string {
	if err == io.EOF {
		return "it is empty"
	}
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) && wrong.Field != "" {
		return fmt.Sprintf("%s can't be a %s", wrong.Field[strings.LastIndexByte(wrong.Field, '.')+1:], wrong.Value)
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

// lockName checks a name, and remembers it for the log.
func (ex *exchange) lockName(name string) error {
	switch {
	case name == "":
		return invalid("a lock needs a name")
	case len(name) > httpwire.MaxName:
		return invalid("the name has %d bytes: at most %d", len(name), httpwire.MaxName)
	case !utf8.ValidString(name) || strings.ContainsRune(name, 0):
		return invalid("the name is not UTF-8 or contains NUL")
	}
	ex.name = name
	return nil
}

// hold checks a hold that a client names.
func (ex *exchange) hold(h httpwire.Hold) (driver.Hold, error) {
	if err := ex.lockName(h.Name); err != nil {
		return driver.Hold{}, err
	}
	if !isOwner(h.Owner) {
		return driver.Hold{}, errOwner
	}
	return h.Driver(), ex.checkFloor(h.Floor)
}

// checkFloor refuses a floor that is far ahead. It moves with the clock, as fences do: a combinator can follow the counter of
// one of its members. Names may share a counter, so who has a part of them can't take it far ahead.
func (ex *exchange) checkFloor(floor uint64) error {
	if floor == 0 {
		return nil
	}
	far, in := time.Now().AddDate(10, 0, 0), "ten years"
	if !ex.who.May(Lock, "") {
		far, in = time.Now().AddDate(0, 0, 1), "a day"
	}
	if most := uint64(far.UnixMicro()) << 10; floor > most {
		return invalid("floor is %d: want at most %d, which fences reach in %s", floor, most, in)
	}
	return nil
}

var errOwner = invalid("the owner is not a UUID in lower case, such as 7f2f3f0e-5a0c-4f0e-9d5e-0a4b4f8b2c11: make a random one for each attempt")

// isOwner reports whether s is a UUID in its 36 character form, in lower case.
func isOwner(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i, c := range []byte(s) {
		dash, hex := i == 8 || i == 13 || i == 18 || i == 23, '0' <= c && c <= '9' || 'a' <= c && c <= 'f'
		if dash && c != '-' || !dash && !hex {
			return false
		}
	}
	return true
}

// checkTTL refuses a TTL that the backend doesn't take.
func (ex *exchange) checkTTL(ttl time.Duration) error {
	caps := ex.s.caps
	if ttl < max(caps.MinTTL, time.Millisecond) || ttl > caps.Longest() {
		return invalid("ttl_ms is %d: want %d to %d", httpwire.Up(ttl), max(httpwire.Up(caps.MinTTL), 1), httpwire.Down(caps.Longest()))
	}
	return nil
}

// pathName returns the name of the lock in the path.
func (ex *exchange) pathName() (string, error) {
	name := ex.r.PathValue("name")
	if name == slashName {
		name = "/"
	}
	return name, ex.lockName(name)
}

// query reads the parameters of the calls that have no body. Others than the known ones are an error.
func (ex *exchange) query(known ...string) (url.Values, error) {
	values, err := url.ParseQuery(ex.r.URL.RawQuery)
	if err != nil {
		return nil, invalid("the query is malformed")
	}
	for key, v := range values {
		if !slices.Contains(known, key) || len(v) > 1 {
			return nil, invalid("parameter %.50q: want each at most once of: %s", key, strings.Join(known, ", "))
		}
		if !utf8.ValidString(v[0]) || strings.ContainsRune(v[0], 0) || len(v[0]) > httpwire.MaxName {
			return nil, invalid("parameter %s is not UTF-8, contains NUL, or has more than %d bytes", key, httpwire.MaxName)
		}
	}
	return values, nil
}

// slashName stands for the name "/" in a path: http.ServeMux takes a segment that is %2F for the end of the path.
const slashName = "\x00"

// replaceSlashName returns r with slashName in place of the name "/".
func replaceSlashName(r *http.Request) *http.Request {
	segments := strings.Split(r.URL.EscapedPath(), "/")
	replaced := false
	for i, s := range segments {
		if strings.EqualFold(s, "%2F") {
			segments[i], replaced = url.PathEscape(slashName), true
		}
	}
	if !replaced {
		return r
	}
	u := *r.URL
	u.RawPath = strings.Join(segments, "/")
	u.Path, _ = url.PathUnescape(u.RawPath)
	r = r.WithContext(r.Context())
	r.URL = &u
	return r
}

// isClean reports whether a path has no empty segment before its last one, and none that is ., .. or NUL.
func isClean(path string) bool {
	segments := strings.Split(strings.TrimPrefix(path, "/"), "/")
	for i, s := range segments {
		if s == "." || s == ".." || s == url.PathEscape(slashName) || s == "" && i < len(segments)-1 {
			return false
		}
	}
	return true
}

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
