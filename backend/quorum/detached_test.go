package quorum_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/backend/quorum"
	"github.com/distlock/distlock/driver"
)

// A downgrade without an answer, through another connection than the one that acquired, leaves the writer its
// votes.
func TestSilentDowngradeThroughAnotherConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var own, other []driver.Backend
		for i, name := range []string{"a", "b", "c"} {
			store := memlock.NewStore()
			m := &scripted{Backend: store.Connect(), name: name}
			if i > 0 {
				m.acquire = errReset
			}
			own, other = append(own, &scripted{Backend: store.Connect(), name: name}), append(other, m)
		}
		one, err := quorum.New(own, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer one.Close()
		two, err := quorum.New(other, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer two.Close()
		w := request(driver.Write)
		if _, err := one.Acquire(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		down := w
		down.Mode = driver.Read
		if _, err := two.Acquire(t.Context(), down); err == nil || errors.Is(err, driver.ErrHeld) || driver.Final(err) {
			t.Fatalf("a downgrade that one of three members answered: %v", err)
		}
		time.Sleep(time.Second) // for what is released in the background
		if err := one.Renew(t.Context(), []driver.Hold{w.Hold})[0]; err != nil {
			t.Errorf("the writer lost its votes: %v", err)
		}
		rival := request(driver.Write)
		rival.Name = w.Name
		if _, err := one.Acquire(t.Context(), rival); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("another writer: %v", err)
		}
		if err := two.Release(t.Context(), w.Hold); err != nil {
			t.Error(err)
		}
	})
}
