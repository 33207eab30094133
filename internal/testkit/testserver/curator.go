package testserver

import (
	"path/filepath"
	"testing"
)

// debianCurator name what else they need themselves, all but what writes the log.
var debianCurator = &jars{
	env: "DISTLOCK_TEST_CURATOR",
	files: []string{
		"/usr/share/java/curator-recipes.jar", "/usr/share/java/curator-framework.jar", "/usr/share/java/curator-client.jar",
		"/usr/share/java/slf4j-simple.jar",
	},
	debian: "libcurator-recipes-java",
}

// DebianCurator are the jars of the Apache Curator that the system has: Debian's is an
// old one with which many deployments run.
func DebianCurator(tb testing.TB) []string {
	tb.Helper()
	if err := debianCurator.find(); err != nil {
		missing(tb, "curator", err)
	}
	return filepath.SplitList(debianCurator.classPath())
}
