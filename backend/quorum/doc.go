// Package quorum makes one lock of several independent coordinators.
package quorum
