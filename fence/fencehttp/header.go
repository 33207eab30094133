package fencehttp

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/distlock/distlock/fence"
)

// Header is the request header with the fence: one decimal number from 1 to 1<<64-1, without sign
// or leading zeros. In an answer it is "stale" or absent.
const Header = "Distlock-Fence"

const stale = "stale"

var errMissing = fmt.Errorf("%w request: want the header %s with the fence of the lock", fence.ErrInvalid, Header)

// Set sets the fence in a request's header. For 0 it deletes the header.
func Set(h http.Header, f uint64) {
	h.Del(Header)
	if f > 0 {
		h.Set(Header, strconv.FormatUint(f, 10))
	}
}

// Parse reads the fence from a request's header. It returns ErrInvalid if the header is missing,
// occurs twice, or isn't a number as described at Header.
func Parse(h http.Header) (uint64, error) {
	values := h.Values(Header)
	switch len(values) {
	case 0:
		return 0, errMissing
	case 1:
	default:
		return 0, fmt.Errorf("%w header %s: it occurs %d times", fence.ErrInvalid, Header, len(values))
	}
	f, err := strconv.ParseUint(values[0], 10, 64)
	if err != nil || strconv.FormatUint(f, 10) != values[0] || f == 0 {
		return 0, fmt.Errorf("%w header %s: want one decimal number from 1 to 18446744073709551615", fence.ErrInvalid, Header)
	}
	return f, nil
}
