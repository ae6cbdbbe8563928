package job

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if Help(os.Args) {
		return
	}
	if program := programs[os.Args[len(os.Args)-1]]; program != nil {
		program()
		return
	}
	goleak.VerifyTestMain(m)
}
