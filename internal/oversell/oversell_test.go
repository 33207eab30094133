package oversell

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/distlock/distlock"
)

// The demo fails where the lock does.
func TestJudge(t *testing.T) {
	for name, test := range map[string]struct {
		fences []uint64
		fails  bool
	}{
		"kept":           {[]uint64{4, 5, 7, 8, 9}, false},
		"oversold":       {[]uint64{4, 5, 6, 7, 8, 9}, true},
		"undersold":      {[]uint64{4, 5, 6, 7}, true},
		"fence repeated": {[]uint64{4, 5, 6, 6, 7}, true},
		"fence falls":    {[]uint64{4, 5, 7, 6, 8}, true},
		"no fences":      {[]uint64{0, 0, 0, 0, 0}, true},
	} {
		var sales []sale
		for _, f := range test.fences {
			sales = append(sales, sale{Fence: f})
		}
		if err := judge(sales); errors.Is(err, ErrLock) != test.fails {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A buyer that fails ends the demo with its reason, though others wait for it.
func TestBuyerFails(t *testing.T) {
	_, err := Demo{Buyer: []string{"-no.such.flag"}}.trial(t.Context(), "bogus:x")
	var buyer *BuyerError
	if !errors.As(err, &buyer) || buyer.Code != 2 || !strings.Contains(err.Error(), "no.such.flag") {
		t.Errorf("got %v", err)
	}
}

func TestBuyerWithoutAnOrder(t *testing.T) {
	none := func(context.Context, string) (*distlock.Client, error) { return nil, errors.New("not asked for") }
	if err := Buy(t.Context(), strings.NewReader(""), new(strings.Builder), none); !errors.Is(err, ErrNoOrder) {
		t.Errorf("got %v", err)
	}
}
