package main

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// twice are the situations of the page's table that can be made here and now, by the first
// words of their rows: what callers and operators do with $key. One is missing: a key expires after
// a minute at the earliest.
var twice = map[string]string{
	"two keys": `
		for id in ID ID-again; do
			bin/idemd claim --namespace payments --scope charge --entity acme --id $id --attempt a
			bin/idemd complete --namespace payments --scope charge --entity acme --id $id --attempt a --outcome charged
		done`,
	"an attempt that had acted": `
		bin/idemd claim $key --attempt a; bin/idemd release $key --attempt a --effect none; bin/idemd claim $key --attempt b`,
	"its lease ended": `
		bin/idemd claim $key --attempt a; bin/idemd release $key --attempt a --effect unknown; bin/idemd claim $key --attempt b
		bin/idemd complete $key --attempt a --outcome charged`,
	"an operator": `
		bin/idemd claim $key --attempt a; bin/idemd record force-release $key --any-fence --reason hangs
		bin/idemd record resolve $key --any-fence --nothing-happened --reason looked; bin/idemd claim $key --attempt b`,
	"a recovery floor": `
		bin/idemd recovery begin --from 2026-01-01T00:00:00Z --reason restored; bin/idemd claim $key --attempt a
		bin/idemd recovery lift --namespace payments --leases-ended --reason settled; bin/idemd claim $key --attempt a`,
	"idemd was not asked": `
		bin/idemd claim $key --attempt a; bin/idemd complete $key --attempt a --outcome charged`,
	"the next hop": `
		bin/idemd claim $key --attempt a; bin/idemd complete $key --attempt a --outcome charged`,
}

// TestReadmeTwice makes what the page's table of double charges has, runs the commands above the
// table, and looks for what it says that they show, in what they print: with both formats of the log.
func TestReadmeTwice(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		t.Run(format, func(t *testing.T) { readmeTwice(t, format) })
	}
	for _, row := range twiceRows(t) {
		known := strings.HasPrefix(row[0], "the key had expired")
		for start := range twice {
			known = known || strings.HasPrefix(row[0], start)
		}
		if !known {
			t.Errorf("nothing makes what the page has as %q", row[0])
		}
	}
}

func readmeTwice(t *testing.T, format string) {
	for start, make := range twice {
		t.Run(start, func(t *testing.T) {
			sh := startShell(t)
			sh.run(t, "bin/idemd serve --data-dir data --log-level debug --log-format "+format+" 2>log &", strings.Repeat("\n", 6))
			sh.run(t, "bin/idemd namespace create payments --retention 7d", "")
			commands := strings.NewReplacer("idemd ", "bin/idemd ", "LOG", "log").Replace(readmeBlocks(t, "twice")[0])
			sh.run(t, regexp.MustCompile("(?m)^key=.*").FindString(commands), "")
			made := sh.run(t, strings.ReplaceAll(make, "ID", "order-1001"), "")
			shown := map[string]string{"metrics": metricsOf(t, strings.TrimSpace(sh.run(t, "echo $IDEMD_ADMIN_ADDR", "")))}
			for line := range strings.Lines(commands) {
				command, label, commented := strings.Cut(line, "#")
				if !commented {
					continue
				}
				label, _, _ = strings.Cut(strings.TrimSpace(label), ":")
				shown[label] = regexp.MustCompile(" +").ReplaceAllString(sh.run(t, command, ""), " ")
			}
			if shown["log"] == "" {
				t.Error("the log shows nothing of the key")
			}
			checkShown(t, twiceRow(t, start), shown)
			if t.Failed() {
				t.Logf("made with:\n%s", made)
			}
		})
	}
}

// checkShown checks that what a row has in `code` behind a command's name is printed by it.
func checkShown(t *testing.T, row []string, shown map[string]string) {
	t.Helper()
	checked := 0
	for part := range strings.SplitSeq(row[1], ";") {
		label, says, _ := strings.Cut(strings.TrimSpace(part), ":")
		printed, ok := shown[label]
		if !ok {
			continue // what is seen elsewhere
		}
		for _, match := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(says, -1) {
			checked++
			if !strings.Contains(printed, match[1]) {
				t.Errorf("%s does not show %q:\n%s", label, match[1], printed)
			}
		}
		for word, never := range map[string]string{"no takeover": "event: takeover", "nothing else": "event: "} {
			if strings.Contains(says, word) && strings.Contains(printed, never) {
				t.Errorf("%s shows %q:\n%s", label, never, printed)
			}
		}
	}
	if checked == 0 {
		t.Errorf("nothing is shown by what the page has: %q", row[1])
	}
}

func twiceRow(t *testing.T, start string) []string {
	t.Helper()
	for _, row := range twiceRows(t) {
		if strings.HasPrefix(row[0], start) {
			return row
		}
	}
	t.Fatalf("no page has a row that begins with %q", start)
	return nil
}

// twiceRows are the cells of the table.
func twiceRows(t *testing.T) (rows [][]string) {
	t.Helper()
	_, table, _ := strings.Cut(readmeText(t), "\n| how it came about | how it shows | what to change |\n|---|---|---|\n")
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "| ") {
			break
		}
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		if len(cells) != 3 {
			t.Fatalf("not three cells: %q", cells)
		}
		rows = append(rows, cells)
	}
	return rows
}

func metricsOf(t *testing.T, addr string) string {
	t.Helper()
	resp, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
