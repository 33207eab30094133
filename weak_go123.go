//go:build !go1.24

package distlock

// weakPointer refers to nothing, since Go 1.23 has no weak pointers.
type weakPointer[T any] struct{}

func makeWeak[T any](*T) weakPointer[T] { return weakPointer[T]{} }

func (weakPointer[T]) Value() *T { return nil }
