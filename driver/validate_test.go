package driver_test

import (
	"errors"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
)

func TestRequestIsValidated(t *testing.T) {
	caps := driver.Caps{Modes: driver.Modes(driver.Exclusive, driver.Counted), Queueing: driver.QueueOnRequest, QueuedModes: driver.Modes(driver.Exclusive)}
	for what, c := range map[string]struct {
		change func(*driver.Request)
		want   error
	}{
		"a lock":              {func(*driver.Request) {}, nil},
		"a place in a queue":  {func(r *driver.Request) { r.Queue = true }, nil},
		"a permit":            {func(r *driver.Request) { r.Mode, r.Limit = driver.Counted, 1 }, nil},
		"more than ten years": {func(r *driver.Request) { r.TTL = driver.MaxTTL + time.Minute }, nil},
		"no mode":             {func(r *driver.Request) { r.Mode = 0 }, driver.ErrUnsupported},
		"mode 9":              {func(r *driver.Request) { r.Mode = 9 }, driver.ErrUnsupported},
		"a mode too many":     {func(r *driver.Request) { r.Mode = driver.Read }, driver.ErrUnsupported},
		"no queue":            {func(r *driver.Request) { r.Mode, r.Limit, r.Queue = driver.Counted, 1, true }, driver.ErrUnsupported},
		"no name":             {func(r *driver.Request) { r.Name = "" }, driver.ErrInvalid},
		"no owner":            {func(r *driver.Request) { r.Owner = "" }, driver.ErrInvalid},
		"no permits":          {func(r *driver.Request) { r.Mode = driver.Counted }, driver.ErrInvalid},
		"no TTL":              {func(r *driver.Request) { r.TTL = 0 }, driver.ErrInvalid},
		"a TTL of 100 years":  {func(r *driver.Request) { r.TTL = 10 * driver.MaxTTL }, driver.ErrInvalid},
	} {
		r := driver.Request{Hold: driver.Hold{Name: "n", Owner: "o", Mode: driver.Exclusive, TTL: time.Second}}
		c.change(&r)
		expect.Be(t, r.Validate(caps), c.want, what)
	}
}

func TestRenewalIsValidated(t *testing.T) {
	for _, c := range []struct {
		h    driver.Hold
		want error
	}{
		{driver.Hold{TTL: time.Second, Floor: 1<<63 - 1}, nil},
		{driver.Hold{TTL: time.Second, Floor: 1 << 63}, driver.ErrInvalid},
		{driver.Hold{TTL: -time.Second}, driver.ErrInvalid},
	} {
		if err := c.h.ValidateRenewal(); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v, want %v", c.h, err, c.want)
		}
	}
}
