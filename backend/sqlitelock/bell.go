package sqlitelock

// bell placeholder while measuring
type bell struct{}

func newBell(string) (*bell, error) { return &bell{}, nil }
func (*bell) ring([]string)         {}
func (*bell) close() error          { return nil }
