package mysqllock

import "testing"

func TestConformanceOfRow(t *testing.T) {
	t.Parallel()
	conform(t, Row)
}
