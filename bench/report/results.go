// Package report makes docs/performance.md, its charts and bench/RESULTS.md from the results of the benchmarks.
//
// The results are a file of their own, so that a scenario that is measured again replaces only its part,
// and so that a test can show that the document says nothing else.
package report

import (
	"cmp"
	"encoding/json"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Results has the measurements of all scenarios.
type Results struct {
	Scenarios []Scenario
}

// Scenario has the measurements of one scenario, and their time and machine.
type Scenario struct {
	Name, Title  string
	Server       string
	Machine, Go  string
	Date, Commit string
	Load         string // before
	Rounds       int
	Rows         []Row
}

// Row is one contender's figures, in the order of the table.
type Row struct {
	Contender string
	Figures   []Figure
}

// Figure is one number. Its name includes the unit.
type Figure struct {
	Name  string
	Value Value
}

// Value is a number that JSON may not know: infinite, or not a number.
type Value float64

// MarshalJSON writes four digits.
func (v Value) MarshalJSON() ([]byte, error) {
	s := strconv.FormatFloat(float64(v), 'g', 4, 64)
	if math.IsInf(float64(v), 0) || math.IsNaN(float64(v)) {
		s = strconv.Quote(s)
	}
	return []byte(s), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (v *Value) UnmarshalJSON(b []byte) error {
	f, err := strconv.ParseFloat(strings.Trim(string(b), `"`), 64)
	*v = Value(f)
	return err
}

// Read returns the results in a file, or none if there is no file.
func Read(path string) (*Results, error) {
	b, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return &Results{}, nil
	}
	if err != nil {
		return nil, err
	}
	r := &Results{}
	return r, json.Unmarshal(b, r)
}

// Put replaces the scenario of this name.
func (r *Results) Put(s Scenario) {
	i := slices.IndexFunc(r.Scenarios, func(o Scenario) bool { return o.Name == s.Name })
	if i < 0 {
		r.Scenarios = append(r.Scenarios, s)
	} else {
		r.Scenarios[i] = s
	}
	slices.SortFunc(r.Scenarios, func(a, b Scenario) int {
		return cmp.Or(cmp.Compare(a.family(), b.family()), cmp.Compare(a.size(), b.size()))
	})
}

// family is the name without the size at its end: the scenarios of a family differ only in that.
func (s Scenario) family() string {
	if i := strings.LastIndexByte(s.Name, '/'); s.size() > 0 {
		return s.Name[:i]
	}
	return s.Name
}

// size is the number at the end of the name, or 0.
func (s Scenario) size() int {
	n, _ := strconv.Atoi(s.Name[strings.LastIndexByte(s.Name, '/')+1:])
	return n
}

// figure returns a contender's figure, or NaN.
func (s Scenario) figure(contender, name string) float64 {
	for _, row := range s.Rows {
		for _, f := range row.Figures {
			if row.Contender == contender && f.Name == name {
				return float64(f.Value)
			}
		}
	}
	return math.NaN()
}

// family returns the scenarios that differ only in a size, from small to large.
func (r *Results) family(name string) (all []Scenario) {
	for _, s := range r.Scenarios {
		if s.family() == name && len(s.Rows) > 0 {
			all = append(all, s)
		}
	}
	return all
}
