package drivertest

var nameChecks, inspectChecks, ctxChecks, closeChecks, cutChecks, lineChecks, watchChecks []promise
