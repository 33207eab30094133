package must

import (
	"errors"
	"runtime"
	"testing"
)

// recorder is a test that notes if it was ended.
type recorder struct {
	testing.TB
	failures int
}

func (r *recorder) Helper()               {}
func (r *recorder) Errorf(string, ...any) { r.failures++ }
func (r *recorder) FailNow()              { runtime.Goexit() }

func TestErrorsEndTheTest(t *testing.T) {
	fails := errors.New("it fails")
	for want, err := range []error{nil, fails} {
		for what, step := range map[string]func(testing.TB) int{
			"OK":    func(tb testing.TB) int { OK(tb, err, "a step"); return 7 },
			"Equal": func(tb testing.TB) int { Equal(tb, err, nil, "a step"); return 7 },
			"Get":   func(tb testing.TB) int { return Get(7, err)(tb) },
		} {
			r, ended := &recorder{}, make(chan int)
			go func() {
				got := 0
				defer func() { ended <- got }()
				got = step(r)
			}()
			if got := <-ended; (got == 7) != (err == nil) || r.failures != want {
				t.Errorf("%s with %v: got %d, %d failures", what, err, got, r.failures)
			}
		}
	}
}
