package server

import (
	"encoding/json"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// routeList yields the patterns of all routes.
func routeList() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, m := range []map[string]handler{calls, pages, openPages} {
			for route := range m {
				if !yield(route) {
					return
				}
			}
		}
		for route := range open {
			if !yield(route) {
				return
			}
		}
	}
}

// The description has the calls that there are, and the messages as they are.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	var doc struct {
		OpenAPI    string
		Paths      map[string]map[string]json.RawMessage
		Components struct {
			Schemas map[string]struct {
				Properties map[string]struct{ Type string }
				Required   []string
			}
		}
	}
	must.OK(t, json.Unmarshal(openAPI, &doc))
	if !strings.HasPrefix(doc.OpenAPI, "3.1.") {
		t.Errorf("version %q", doc.OpenAPI)
	}
	var described []string
	for path, methods := range doc.Paths {
		for method := range methods {
			described = append(described, strings.ToUpper(method)+" "+path)
		}
	}
	there := slices.Concat(slices.Collect(maps.Keys(calls)), slices.Collect(maps.Keys(open)))
	slices.Sort(there)
	slices.Sort(described)
	if !slices.Equal(there, described) {
		t.Errorf("calls that are there:\n%v\ndescribed:\n%v", there, described)
	}
	messages := map[string]any{
		"Hello": httpwire.Hello{}, "Limits": httpwire.Limits{}, "Caps": httpwire.Caps{}, "Hold": httpwire.Hold{}, "Request": httpwire.Request{},
		"Grant": httpwire.Grant{}, "SimpleGrant": simpleGrant{}, "Renewal": httpwire.Renewal{}, "Renewed": httpwire.Renewed{},
		"Call": httpwire.Call{}, "Called": httpwire.Called{},
		"Holder": httpwire.Holder{}, "Info": httpwire.Info{}, "Names": httpwire.Names{}, "Ask": httpwire.Ask{}, "News": httpwire.News{},
		"Problem": httpwire.Problem{},
	}
	expect.Equal(t, len(messages), len(doc.Components.Schemas), "messages are described")
	for name, message := range messages {
		fields := fieldsOf(reflect.TypeOf(message))
		schema := doc.Components.Schemas[name]
		for field, kind := range fields {
			if p, ok := schema.Properties[field]; !ok || p.Type != "" && p.Type != kind {
				t.Errorf("%s.%s is %s, described as %+v", name, field, kind, p)
			}
		}
		for field := range schema.Properties {
			if _, ok := fields[field]; !ok {
				t.Errorf("%s.%s is described and not there", name, field)
			}
		}
		for _, field := range schema.Required {
			if _, ok := schema.Properties[field]; !ok {
				t.Errorf("%s.%s is required and not described", name, field)
			}
		}
	}
}

// fieldsOf returns the JSON types of a struct's fields.
func fieldsOf(t reflect.Type) map[string]string {
	all := map[string]string{}
	for f := range fields(t) {
		if f.Anonymous {
			maps.Copy(all, fieldsOf(f.Type))
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		all[name] = jsonType(f.Type)
		if strings.Contains(options, "string") {
			all[name] = "string"
		}
	}
	return all
}

func fields(t reflect.Type) func(yield func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range t.NumField() {
			if !yield(t.Field(i)) {
				return
			}
		}
	}
}

func jsonType(t reflect.Type) string {
	if _, ok := t.MethodByName("MarshalText"); ok {
		return "string"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "boolean"
	case reflect.Slice:
		return "array"
	case reflect.Map, reflect.Struct:
		return "object"
	case reflect.String:
		return "string"
	case reflect.Pointer:
		return jsonType(t.Elem())
	}
	return "integer"
}

// The metrics count waits and holds by mode and by their end, and name no lock.
func TestMetricsOfHolds(t *testing.T) {
	t.Parallel()
	r := start(t, memlock.New(), Options{})
	r.wants(200, "", "POST", "/v1/acquire", hold("x", ownerA))
	answer := r.background("POST", "/v1/acquire", waiting("x", ownerB, 60_000))
	r.await("x", 1)
	r.wants(204, "", "POST", "/v1/release", hold("x", ownerA))
	answer(200, "")
	for _, line := range []string{
		`distlock_wait_duration_seconds_count{mode="exclusive",outcome="granted"} 2`,
		`distlock_hold_duration_seconds_count{mode="exclusive",outcome="released"} 1`,
	} {
		r.wants(200, line, "GET", "/metrics", "")
	}
}
