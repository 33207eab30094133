package chart_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"testing"

	"github.com/distlock/distlock/bench/chart"
	"github.com/distlock/distlock/internal/testkit/expect"
)

var curves = chart.Curves{
	Title: "Requests for one acquisition, as waiters grow",
	X:     chart.Axis{Label: "waiting processes", Log: true},
	Y:     chart.Axis{Label: "commands", Log: true},
	Series: []chart.Series{
		{Name: "distlock", X: []float64{1, 4, 16, 64, 256}, Y: []float64{2.7, 3.9, 4, 4, 4}, Bold: true},
		{Name: "rueidislock & others", X: []float64{1, 4, 16, 64, 256}, Y: []float64{3, 8, 20, 70, 0}, Color: 1},
		{Name: "redsync", X: []float64{1, 4, 16, 64, 256}, Y: []float64{3, math.NaN(), 12, 90, 900}, Color: 2},
	},
}

func TestChartsAreSmallWellFormedAndRepeatable(t *testing.T) {
	for name, draw := range map[string]func() ([]byte, error){
		"curves": curves.SVG, "no curves": chart.Curves{}.SVG,
	} {
		svg, err := draw()
		if err != nil {
			t.Fatal(name, err)
		}
		if again, _ := draw(); !bytes.Equal(svg, again) {
			t.Errorf("%s: the same chart differs when it is drawn again", name)
		}
		if len(svg) > 32<<10 {
			t.Errorf("%s: %d bytes", name, len(svg))
		}
		if !bytes.Contains(svg, []byte("prefers-color-scheme")) || bytes.Contains(svg, []byte("NaN")) {
			t.Errorf("%s: no dark mode, or not a number:\n%s", name, svg)
		}
		wellFormed(t, name, svg)
	}
}

func wellFormed(t *testing.T, name string, svg []byte) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(svg))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0", .25: "0.25", 1: "1", 256: "256", 1000: "1000", 9999: "10 k", 62_512: "62.5 k", 1e6: "1 M"} {
		expect.Equal(t, chart.Number(v), want, v, "is written")
	}
}
