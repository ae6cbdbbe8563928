package store

import (
	"fmt"
	"strings"
	"time"
)

// SpanText is a duration as people type it: 7d or 1h30m, not 168h0m0s or 1h30m0s.
func SpanText(d time.Duration) string {
	const day = 24 * time.Hour
	if d > day && d%day == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	text := d.String()
	for _, nothing := range []struct{ end, short string }{{"m0s", "m"}, {"h0m", "h"}} {
		if rest, found := strings.CutSuffix(text, nothing.end); found {
			text = rest + nothing.short
		}
	}
	return text
}
