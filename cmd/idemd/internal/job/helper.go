package job

import "os"

// Help does what a process was started for by a [Job], in place of the program's own work, and
// reports whether it was. It may not return: the process becomes the job's command.
func Help(args []string) bool {
	switch {
	case len(args) == 2 && args[1] == watcherCommand:
		watch(os.Stdin)
	case len(args) > 4 && args[1] == starterCommand:
		startCommand(args[2:])
	default:
		return false
	}
	return true
}
