package main

import (
	"testing"

	"github.com/distlock/distlock/examples/internal/storytest"
)

func TestWithoutALockMoreAreSoldThanThereAre(t *testing.T) {
	s := storytest.New(t)
	if sold, err := open(t.Context(), s, sell); err != nil || sold <= cups {
		t.Errorf("sold %d of %d, %v; it should have gone wrong", sold, cups, err)
	}
}

func TestUnderALockAllAreSoldAndNoMore(t *testing.T) {
	s := storytest.New(t)
	if sold, err := open(t.Context(), s, sellLocked); err != nil || sold != cups {
		t.Errorf("sold %d of %d, %v", sold, cups, err)
	}
}
