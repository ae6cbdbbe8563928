package sqlstore

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"
)

// atOnce is how many tests run at once where there are fewer processors: most of them wait for the
// database, or for its clock.
const atOnce = 4

func TestMain(m *testing.M) {
	flag.Parse()
	parallel := flag.Lookup("test.parallel").Value
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Value == parallel })
	if n, err := strconv.Atoi(parallel.String()); !given && err == nil && n < atOnce {
		if err := parallel.Set(fmt.Sprint(atOnce)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}
