// Package killtest has a test binary run itself as another process, and kills that at a step.
package killtest

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
)

// At starts this test binary with a variable ("NAME=value") in its environment, to run one test,
// and kills it, as kill -9 does, when it prints that it is at the step.
func At(ctx context.Context, test, variable, step string) error {
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+test+"$")
	cmd.Env = append(os.Environ(), variable)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	line, _ := bufio.NewReader(stdout).ReadString('\n') // what it said last if it ended
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if line != "at "+step+"\n" {
		return fmt.Errorf("the process said %q, and did not come to %s", line, step)
	}
	return nil
}
