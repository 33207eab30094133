//go:build !unix

package main

// No program can become another one here.
import _ "github.com/distlock/distlock/backend/all"
