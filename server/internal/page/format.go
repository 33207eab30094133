package page

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/distlock/distlock/driver"
)

// lockID identifies a lock's elements in a page.
func lockID(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:8])
}

// Shown returns a text so that all of it can be seen and typed.
func Shown(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		s = strconv.Quote(s)
		return s[1 : len(s)-1]
	}
	return s
}

// span formats a time of seconds to days, as page.js does.
func span(d time.Duration) string {
	s := int(max(d, 0).Seconds())
	switch {
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 3600:
		return fmt.Sprintf("%dm %02ds", s/60, s%60)
	case s < 86400:
		return fmt.Sprintf("%dh %02dm", s/3600, s/60%60)
	}
	return fmt.Sprintf("%dd %02dh", s/86400, s/3600%24)
}

// latency formats a short time.
func latency(d time.Duration) string {
	switch {
	case d >= time.Minute:
		return span(d)
	case d >= 10*time.Second:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d >= time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d >= 10*time.Millisecond:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d >= time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
	}
	return fmt.Sprintf("%d µs", d.Microseconds())
}

// rate formats how often something happens in a second.
func rate(perSecond float64) string {
	switch {
	case perSecond >= 10:
		return fmt.Sprintf("%.0f/s", perSecond)
	case perSecond >= .1:
		return fmt.Sprintf("%.1f/s", perSecond)
	case perSecond > 0:
		return fmt.Sprintf("%.0f/min", 60*perSecond)
	}
	return "0"
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// left returns how much of a hold's TTL is left, in percent.
func left(p party) int {
	if p.TTL <= 0 {
		return 0
	}
	return min(max(int(100*time.Until(p.Until)/p.TTL), 0), 100)
}

// tone says how late a renewal is: holders renew after a third of the TTL.
func tone(percent int) string {
	switch {
	case percent < 10:
		return "bad"
	case percent < 34:
		return "late"
	}
	return "good"
}

func percent(share float64) int { return int(100*share + .5) }

func modes(set driver.ModeSet) (all []driver.Mode) {
	for m := driver.Exclusive; m <= driver.Counted; m++ {
		if set.Has(m) {
			all = append(all, m)
		}
	}
	return all
}

// modeOf is the mode of a lock as a key of texts.
func modeOf(m driver.Mode) string {
	if m == 0 {
		return "mode.free"
	}
	return "mode." + m.String()
}

const chartWidth, chartHeight = 120, 28

// chart returns the path of bars that show values over time, and the greatest value.
func chart(values []float64) (c struct {
	Bars string
	Top  float64
}) {
	for _, v := range values {
		c.Top = max(c.Top, v)
	}
	var path strings.Builder
	width := chartWidth / float64(max(len(values), 1))
	for i, v := range values {
		if v > 0 {
			fmt.Fprintf(&path, "M%.1f %dV%.1fh%.1fV%dz", float64(i)*width, chartHeight, (chartHeight-1)*(1-v/c.Top), width*.75, chartHeight)
		}
	}
	c.Bars = path.String()
	return c
}
