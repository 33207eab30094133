package fenceredis

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/distlock/distlock/fence"
)

// Key is the key in which the fence of a resource is stored:
//
//	stock:7       distlock_guard:{stock:7}
//	{stock}:7     {stock}:7:distlock_guard
//
// It lies in the slot of a key that is called like the resource. ErrInvalid: a name whose
// braces make that impossible, as "a}b" or "{}", and what fence.Valid refuses.
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
	return "", fmt.Errorf("fenceredis: %w resource %q: want a hash tag {…} with something in it, or no braces", fence.ErrInvalid, resource)
}

// Judge compares a fence with what is stored in the resource's Key, "" if nothing is: a
// *fence.StaleError if the fence is smaller, ErrInvalid if that is no fence.
func Judge(resource string, f uint64, stored string) error {
	if err := fence.Valid(resource, f); err != nil {
		return fmt.Errorf("fenceredis: %w", err)
	}
	if stored == "" {
		return nil
	}
	seen, err := strconv.ParseUint(stored, 10, 64)
	if err != nil {
		return fmt.Errorf("fenceredis: %w guard of %q: it holds %q, and no fence", fence.ErrInvalid, resource, stored)
	}
	if err := fence.Check(resource, f, seen); err != nil {
		return fmt.Errorf("fenceredis: %w", err)
	}
	return nil
}
