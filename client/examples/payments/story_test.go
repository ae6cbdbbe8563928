package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestStory plays the story with each way of guarding, and checks for every order how often
// it was charged and what each call was answered.
func TestStory(t *testing.T) {
	const declined = "the card was declined"
	const broke = "the connection broke before the reply came"
	guarded := []string{ // the charges, and the answers: c1 is the first charge, and so on
		"1: c1, c1 (repeat)",
		"1: c1, 7 × c1 (repeat)",
		"1: c1 (repeat)",
		"1: c1, FINGERPRINT_MISMATCH",
		"1: c1",
		"0: " + declined + ", " + declined + " (repeat)",
	}
	unguarded := []string{
		"2: c1, c2",
		"8: c1, c2, c3, c4, c5, c6, c7, c8",
		"3: c3, 2 × " + broke,
		"2: c1, c2",
		"2: " + errReplyLost.Error() + ", c2",
		"0: 2 × " + declined,
	}
	for name, test := range map[string]struct {
		g    guarding
		want []string
	}{
		"guarded":    {guarding{recover: true}, guarded},
		"no recover": {guarding{}, withFifth(guarded, "1: an earlier attempt may have charged: look at the provider before anything else")},
		"hold":       {guarding{recover: true, hold: true}, withFifth(guarded, "1: KEY_UNRESOLVED")},
		"unguarded":  {guarding{off: true}, unguarded},
		"observe":    {guarding{observe: true, recover: true}, unguarded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lines, err := playIn(t.Context(), t.TempDir(), test.g)
			if err != nil {
				t.Fatal(err)
			}
			for i, l := range lines {
				if got := inShort(l); got != test.want[i] {
					t.Errorf("%s: %s: got %q, want %q", l.scene.order, l.scene.what, got, test.want[i])
				}
			}
			if len(lines) != len(test.want) {
				t.Errorf("%d lines, want %d", len(lines), len(test.want))
			}
		})
	}
}

func withFifth(lines []string, fifth string) []string {
	lines = slices.Clone(lines)
	lines[4] = fifth
	return lines
}

// inShort writes a line with numbers for the ids of its charges, which are drawn.
func inShort(l line) string {
	text := summary(l.answers)
	for i, c := range l.charges {
		text = strings.ReplaceAll(text, c.GetId(), fmt.Sprintf("c%d", i+1))
	}
	if l.scene.what == sentAtOnce { // nobody knows in which order those came
		parts := strings.Split(text, ", ")
		slices.Sort(parts)
		text = strings.Join(parts, ", ")
		text = strings.Replace(text, "7 × c1 (repeat), c1", "c1, 7 × c1 (repeat)", 1)
	}
	return fmt.Sprintf("%d: %s", len(l.charges), text)
}

// TestWholeStory tells the story as the command without arguments does.
func TestWholeStory(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := run(t.Context(), nil, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"with the guard\n",
		`(?m)^order-2   sent eight times at once +1 +ch_[A-Z2-7]{6}, 7 × ch_[A-Z2-7]{6} \(repeat\)$`,
		"without it",
		`(?m)^order-1   tapped twice +2 +ch_[A-Z2-7]{6}, ch_[A-Z2-7]{6}$`,
		`(?m)^the guard's events: granted 6, takeover 1, replayed 11, mismatch 1, recorded 6, unknown 1$`,
	} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("the output does not match %q:\n%s", want, &out)
		}
	}
}

func TestRefusesWrongArguments(t *testing.T) {
	t.Parallel()
	ledger := "--ledger=" + filepath.Join(t.TempDir(), "ledger")
	for _, args := range [][]string{{"sever"}, {"server", "x"}, {"--unguarded", "x"}, {"caller", "x"}, {"server", ledger, "--addr=x"}} {
		if err := run(t.Context(), args, io.Discard, io.Discard); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
}

// TestServerAndCaller runs the two commands against an idemd, the caller twice for the same
// account: the second time everything is a repeat. Told to end, the server ends in order.
func TestServerAndCaller(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ctx, end := context.WithCancel(t.Context())
	defer end()
	idemd := startIdemd(t, filepath.Join(dir, "idemd"))
	said, out := io.Pipe()
	served := make(chan error, 1)
	var notes strings.Builder
	go func() {
		served <- run(ctx, []string{"server", "--addr=127.0.0.1:0",
			"--idemd=" + idemd.addr, "--ledger=" + filepath.Join(dir, "ledger")}, out, &notes)
		_ = out.Close()
	}()
	text, err := bufio.NewReader(said).ReadString('\n')
	addr, ok := strings.CutPrefix(strings.TrimSpace(text), servesOn)
	if !ok {
		t.Fatalf("the server said %q, %v", text, err)
	}
	var first, second strings.Builder
	for _, out := range []*strings.Builder{&first, &second} {
		if err := run(t.Context(), []string{"caller", "--addr=" + addr, "--account=account-1"}, out, io.Discard); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []string{"1", "1", "1", "1", "1", "0"} {
		order := fmt.Sprintf("order-%d", i+1)
		line := regexp.MustCompile(`(?m)^` + order + `  .*  (\d+)  +(\S.*)$`)
		got, again := line.FindStringSubmatch(first.String()), line.FindStringSubmatch(second.String())
		if got == nil || again == nil || got[1] != want || again[1] != want {
			t.Errorf("%s is not charged %s times in all:\n%s\n%s", order, want, &first, &second)
			continue
		}
		if !strings.Contains(again[2], "(repeat)") {
			t.Errorf("%s: the second time it is answered %q, want a repeat", order, again[2])
		}
	}
	end()
	if err := <-served; err != nil {
		t.Errorf("the server ended with %v", err)
	}
	if notes.Len() > 0 {
		t.Errorf("with an idemd that answers the server noted %q", &notes)
	}
}
