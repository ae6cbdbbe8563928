package main

import (
	"fmt"
	"runtime/debug"
)

// versionCmd shows what this program was built from.
type versionCmd struct{}

// Run is called by kong.
func (versionCmd) Run(s *session) error {
	if _, err := fmt.Fprintln(s.stdout, versionText()); err != nil {
		return unwritten(err)
	}
	return nil
}

func versionText() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "idemd, built without build information"
	}
	text := fmt.Sprintf("idemd %s %s", info.Main.Version, info.GoVersion)
	for _, setting := range info.Settings {
		switch {
		case setting.Key == "vcs.revision":
			text += " " + setting.Value
		case setting.Key == "vcs.modified" && setting.Value == "true":
			text += " (modified)"
		}
	}
	return text
}
