package server

import "iter"

// routeList yields the patterns of all routes.
func routeList() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, m := range []map[string]handler{calls, pages, openPages} {
			for route := range m {
				if !yield(route) {
					return
				}
			}
		}
		for route := range open {
			if !yield(route) {
				return
			}
		}
	}
}
