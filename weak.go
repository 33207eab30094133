//go:build go1.24

package distlock

import "weak"

// weakPointer refers to a T, and does not keep it alive.
type weakPointer[T any] struct{ weak.Pointer[T] }

func makeWeak[T any](p *T) weakPointer[T] { return weakPointer[T]{weak.Make(p)} }
