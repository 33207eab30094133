package fenceredis

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/distlock/distlock/fence"
)

// Key returns the key in which the fence of a resource is stored:
//
//	stock:7       distlock_guard:{stock:7}
//	{stock}:7     {stock}:7:distlock_guard
//
// It lies in the slot of a key with the resource's name. Key returns ErrInvalid for a name whose
// braces make that impossible, such as "a}b" or "{}", and where fence.Valid does.
func Key(resource string) (string, error) {
	if err := fence.Valid(resource, 1); err != nil {
		return "", fmt.Errorf("fenceredis: %w", err)
	}
	open := strings.IndexByte(resource, '{')
	end := strings.IndexByte(resource[open+1:], '}')
	switch {
	case open < 0 && end < 0:
		return "distlock_guard:{" + resource + "}", nil
	case open >= 0 && end > 0:
		return resource + ":distlock_guard", nil
	}
	return "", fmt.Errorf("fenceredis: %w resource %q: want a non-empty hash tag {…} or no braces", fence.ErrInvalid, resource)
}

// Judge compares a fence with the value stored in the resource's Key, or "" if there is none. It
// returns a *fence.StaleError if the fence is smaller, and ErrInvalid if the value is not a fence.
func Judge(resource string, f uint64, stored string) error {
	if err := fence.Valid(resource, f); err != nil {
		return fmt.Errorf("fenceredis: %w", err)
	}
	if stored == "" {
		return nil
	}
	seen, err := strconv.ParseUint(stored, 10, 64)
	if err != nil {
		return fmt.Errorf("fenceredis: %w guard of %q: its value %q is not a fence", fence.ErrInvalid, resource, stored)
	}
	if err := fence.Check(resource, f, seen); err != nil {
		return fmt.Errorf("fenceredis: %w", err)
	}
	return nil
}
