package demo

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/idemd/idemd/store/sqlstore/pgtest"
)

func open(t *testing.T, database string) *Stage {
	t.Helper()
	stage, err := Open(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stage.Close(); err != nil {
			t.Error(err)
		}
	})
	return stage
}

func playOf(t *testing.T, stage *Stage, broken, guards string) Result {
	t.Helper()
	b, err := Choose(Breaks, strings.Split(broken, ","))
	if err != nil {
		t.Fatal(err)
	}
	g, err := Choose(Guards, strings.Split(guards, ","))
	if err != nil {
		t.Fatal(err)
	}
	result, err := stage.Play(t.Context(), b, g)
	if err != nil {
		t.Fatalf("broken %s, guarded %s: %v", broken, guards, err)
	}
	return result
}

// cases are what somebody who builds payments expects, written by hand: payment rows, charges, receipts.
var cases = []struct {
	broken, guards              string
	payments, charges, receipts int
	why                         string
}{
	{"none", "none", 1, 1, 1, "nothing goes wrong"},
	{"none", "all", 1, 1, 1, "guards are in nobody's way"},

	{"app", "none", 2, 2, 2, "two requests are two payments"},
	{"app", "service", 2, 2, 2, "a fresh key is another intent"},
	{"app", "service,business", 1, 1, 1, "the order knows that it is paid"},
	{"app", "business", 1, 1, 1, "and needs no key for that"},
	{"app", "kept-key", 2, 2, 2, "a key that nobody looks at guards nothing"},
	{"app", "service,kept-key", 1, 1, 1, "the same key is the same intent"},
	{"app", "outbox,inbox,provider-key,webhook,mail", 2, 2, 2, "what is two payments from the start stays two"},

	{"balancer", "none", 2, 2, 2, "a POST that is sent again acts again"},
	{"balancer", "never-resend", 2, 2, 2, "the duplicate moves to the app's retry"},
	{"balancer", "service", 1, 1, 1, "the balancer sends the key along"},
	{"balancer", "never-resend,service", 1, 1, 1, "so does the app"},

	{"service", "none", 2, 2, 2, "the retry finds a service that knows nothing"},
	{"service", "service", 1, 1, 1, "the next attempt finds the row of the first"},
	{"service", "business", 1, 1, 1, "so does the order"},

	{"relay", "none", 1, 2, 2, "two messages are two charges"},
	{"relay", "inbox", 1, 2, 2, "an id made while publishing is another message"},
	{"relay", "outbox", 1, 2, 2, "a stored id that nobody looks at guards nothing"},
	{"relay", "outbox,inbox", 1, 1, 1, "the stored id is known"},
	{"relay", "outbox,provider-key", 1, 1, 1, "the provider's key is derived from it"},
	{"relay", "provider-key", 1, 2, 2, "and is another one for another id"},
	{"relay", "look-up", 1, 2, 2, "another id is another charge"},
	{"relay", "outbox,look-up", 1, 1, 1, "the stored id is that of one charge"},

	{"queue", "none", 1, 2, 2, "a message that comes again acts again"},
	{"queue", "inbox", 1, 1, 1, "its row was committed with the charge's"},
	{"queue", "provider-key", 1, 1, 1, "the same message has the same key"},
	{"queue", "look-up", 1, 1, 1, "idemd knows the charge"},
	{"queue", "service,business,outbox,webhook", 1, 2, 2, "what stands before the queue does not know"},

	{"worker", "none", 1, 2, 2, "the message comes again"},
	{"worker", "inbox", 1, 2, 2, "the inbox's row was not committed, and the charge is not undone with it"},
	{"worker", "inbox,provider-key", 1, 1, 1, "the provider knows the key"},
	{"worker", "provider-key", 1, 1, 1, "and needs no inbox for that"},
	{"worker", "look-up", 1, 1, 1, "once the provider's search has the charge, it is found"},
	{"worker", "service,business,outbox,inbox,webhook", 1, 2, 2, "no other guard reaches as far as the provider"},

	{"provider", "inbox", 1, 2, 2, "no row was committed for a reply that was lost"},
	{"provider", "provider-key", 1, 2, 2, "past its retention the provider has forgotten the key"},
	{"provider", "look-up", 1, 1, 1, "the shop's reference of the charge is no key, and is not forgotten"},
	{"provider", "provider-key,look-up", 1, 1, 1, "past its retention it is looked up, and nothing is sent blind"},
	{"provider,worker", "provider-key", 1, 2, 2, "the key is forgotten once, and then known again"},
	{"provider", "service,business,outbox,inbox,provider-key,webhook", 1, 2, 2, "nobody else knows what the provider forgot"},

	{"webhook", "none", 1, 1, 2, "the event comes again"},
	{"webhook", "webhook", 1, 1, 1, "its id is known"},
	{"webhook", "mail", 1, 1, 1, "the receipt is recorded"},
	{"mail", "none", 1, 1, 2, "the event comes again"},
	{"mail", "webhook", 1, 1, 1, "its row was committed before the mail went out"},
	{"mail", "mail", 1, 1, 1, "so was the receipt"},
	{"worker", "mail", 1, 2, 1, "one receipt hides two charges"},

	// Of one tap, the service gets a request and its retries: it dies after the first, the reply of the second is
	// lost, and the app restarts after the third. The relay publishes one message twice; the first message comes four times:
	// its reply is lost, then the worker dies, then its acknowledgement is lost. And the first event comes three times.
	{"all", "none", 4, 8, 10, "each break adds one"},
	{"all", "webhook", 4, 8, 8, "as many receipts as charges"},
	{"all", "mail", 4, 8, 4, "as many receipts as payments"},
	{"all", "service", 2, 6, 8, "a payment for each key"},
	{"all", "business", 1, 5, 7, "a payment for the order"},
	{"all", "kept-key,never-resend", 4, 8, 10, "who asks cannot guard"},
	{"all", "kept-key,service,outbox,inbox,provider-key,look-up", 1, 1, 3, "one charge, and its event three times"},
	{"all", "business,outbox,provider-key,look-up,webhook", 1, 1, 1, "one guard for each effect is enough"},
	{"all", "business,outbox,look-up,webhook", 1, 1, 1, "of the charge a look-up is enough"},
	{"all", "look-up", 4, 5, 7, "a charge for each message, however often it comes"},
	{"all", "business,outbox,provider-key,webhook", 1, 2, 2, "a key is none once it is forgotten"},
	{"all", "all", 1, 1, 1, "all breaks, no effect twice"},
}

func TestCases(t *testing.T) {
	stage := open(t, "")
	for _, c := range cases {
		got := playOf(t, stage, c.broken, c.guards)
		if got.Payments != c.payments || got.Charges != c.charges || got.Receipts != c.receipts {
			t.Errorf("broken %s, guarded %s: %d payments, %d charges, %d receipts; want %d, %d, %d: %s\n%+v", c.broken, c.guards,
				got.Payments, got.Charges, got.Receipts, c.payments, c.charges, c.receipts, c.why, got)
		}
	}
}

// With all guards on, whatever breaks, and however many hops do, there is one of each.
func TestAllGuardsHoldAgainstEveryCombination(t *testing.T) {
	stage := open(t, "")
	for bits := range 1 << len(Breaks) {
		if testing.Short() && bits%13 != 0 {
			continue
		}
		var broken []string
		for i, hop := range namesOf(Breaks) {
			if bits&(1<<i) != 0 {
				broken = append(broken, hop)
			}
		}
		if broken == nil {
			broken = []string{"none"}
		}
		got := playOf(t, stage, strings.Join(broken, ","), "all")
		if got.Payments != 1 || got.Charges != 1 || got.Receipts != 1 {
			t.Errorf("broken %v: %+v", broken, got)
		}
	}
}

// Each break is seen: somebody repeats something, and with all guards on a guard says so.
func TestTold(t *testing.T) {
	stage := open(t, "")
	for _, c := range []struct {
		broken, guards    string
		repeated, guarded []string // who
	}{
		{"none", "all", nil, nil},
		{"app", "none", []string{"app"}, nil},
		{"app", "all", []string{"app"}, []string{"kept-key", "service"}},
		{"app", "service,business", []string{"app"}, []string{"business"}},
		{"balancer", "service", []string{"balancer"}, []string{"service"}},
		{"balancer", "never-resend", []string{"app"}, []string{"never-resend"}},
		{"service", "all", []string{"app"}, []string{"service"}},
		{"relay", "all", []string{"relay"}, []string{"outbox", "inbox"}},
		{"relay", "inbox", []string{"relay"}, nil},
		{"relay", "outbox,provider-key", []string{"relay"}, []string{"outbox", "provider-key"}},
		{"queue", "all", []string{"queue"}, []string{"inbox"}},
		{"queue", "provider-key", []string{"queue"}, []string{"provider-key"}},
		{"worker", "all", []string{"queue"}, []string{"provider-key"}},
		{"queue", "look-up", []string{"queue"}, []string{"look-up"}},
		{"worker", "look-up", []string{"queue", "queue"}, []string{"look-up"}}, // again when it can be found
		{"worker", "provider-key,look-up", []string{"queue"}, []string{"provider-key"}},
		{"provider", "look-up", []string{"queue"}, []string{"look-up"}},
		{"provider", "all", []string{"queue"}, []string{"look-up"}},
		{"provider", "provider-key", []string{"queue"}, nil},
		{"webhook", "all", []string{"provider"}, []string{"webhook"}},
		{"webhook", "mail", []string{"provider"}, []string{"mail"}},
		{"mail", "all", []string{"provider"}, []string{"webhook"}},
		{"all", "all", []string{"app", "app", "app", "relay", "queue", "queue", "queue", "provider", "provider"},
			[]string{"never-resend", "service", "never-resend", "service", "kept-key", "service", "outbox",
				"look-up", "look-up", "inbox", "inbox", "webhook", "webhook"}},
	} {
		got := playOf(t, stage, c.broken, c.guards)
		if who := whos(got.Repeated); !slices.Equal(who, c.repeated) {
			t.Errorf("broken %s, guarded %s: repeated by %v, want %v", c.broken, c.guards, who, c.repeated)
		}
		if who := whos(got.Guarded); !slices.Equal(who, c.guarded) {
			t.Errorf("broken %s, guarded %s: guarded by %v, want %v", c.broken, c.guards, who, c.guarded)
		}
	}
}

func whos(lines []Line) (who []string) {
	for _, line := range lines {
		who = append(who, line.Who)
	}
	return who
}

// No guard makes any end worse, with whatever others it is on.
func TestNoGuardHarms(t *testing.T) {
	stage := open(t, "")
	all := namesOf(Guards)
	results := make([]Result, 1<<len(all))
	for bits := range results {
		if testing.Short() && bits%16 != 0 { // all combinations of the last guards
			continue
		}
		on := []string{}
		for i, name := range all {
			if bits&(1<<i) != 0 {
				on = append(on, name)
			}
		}
		result, err := stage.Play(t.Context(), setOf(namesOf(Breaks)...), setOf(on...))
		if err != nil {
			t.Fatal(err)
		}
		results[bits] = result
		for i := range all {
			without := results[bits&^(1<<i)]
			if result.Payments > without.Payments || result.Charges > without.Charges || result.Receipts > without.Receipts {
				t.Errorf("guards %v: %+v; without %s %+v", on, result, all[i], without)
			}
		}
	}
}

// Nothing is left to chance, and one play does not see another.
func TestPlaysAreAlike(t *testing.T) {
	stage := open(t, "")
	for _, guards := range []string{"none", "service,inbox", "all"} {
		if first, second := playOf(t, stage, "all", guards), playOf(t, stage, "all", guards); !reflect.DeepEqual(first, second) {
			t.Errorf("first %+v, then %+v", first, second)
		}
	}
}

// What the provider is asked while it knows a key, and what when it may have forgotten it.
func TestProviderRetention(t *testing.T) {
	stage := open(t, "")
	for _, c := range []struct{ broken, guards, want string }{
		{"worker", "provider-key", "the provider knew the key, and answered with the first charge"},
		{"worker", "provider-key,look-up", "the provider knew the key, and answered with the first charge"},
		{"provider", "provider-key", ""},
		{"provider,worker", "provider-key", "the provider knew the key, and answered with the first charge"}, // of the second charge
		{"provider", "provider-key,look-up", "looked up by the shop's reference, and found; nothing was sent"},
		{"provider,worker", "provider-key,look-up", "looked up by the shop's reference, and found; nothing was sent"},
		{"provider,worker", "look-up", "looked up by the shop's reference, and found; nothing was sent"},
		{"worker", "look-up", "looked up by the shop's reference, and found; nothing was sent"},
	} {
		said := ""
		if got := playOf(t, stage, c.broken, c.guards); len(got.Guarded) > 0 {
			said = got.Guarded[0].What
		}
		if said != c.want {
			t.Errorf("broken %s, guards %s: %q, want %q", c.broken, c.guards, said, c.want)
		}
	}
}

// matrix is written by hand: see cases for why.
const matrix = `guards \ broken       none   app    balancer  service  relay  queue  worker  provider  webhook  mail   all
none                  1 1 1  2 2 2  2 2 2     2 2 2    1 2 2  1 2 2  1 2 2   1 2 2     1 1 2    1 1 2  4 8 10
kept-key              1 1 1  2 2 2  2 2 2     2 2 2    1 2 2  1 2 2  1 2 2   1 2 2     1 1 2    1 1 2  4 8 10
never-resend          1 1 1  2 2 2  2 2 2     2 2 2    1 2 2  1 2 2  1 2 2   1 2 2     1 1 2    1 1 2  4 8 10
service               1 1 1  2 2 2  1 1 1     1 1 1    1 2 2  1 2 2  1 2 2   1 2 2     1 1 2    1 1 2  2 6 8
business              1 1 1  1 1 1  1 1 1     1 1 1    1 2 2  1 2 2  1 2 2   1 2 2     1 1 2    1 1 2  1 5 7
outbox                1 1 1  2 2 2  2 2 2     2 2 2    1 2 2  1 2 2  1 2 2   1 2 2     1 1 2    1 1 2  4 8 10
inbox                 1 1 1  2 2 2  2 2 2     2 2 2    1 2 2  1 1 1  1 2 2   1 2 2     1 1 2    1 1 2  4 7 9
provider-key          1 1 1  2 2 2  2 2 2     2 2 2    1 2 2  1 1 1  1 1 1   1 2 2     1 1 2    1 1 2  4 6 8
look-up               1 1 1  2 2 2  2 2 2     2 2 2    1 2 2  1 1 1  1 1 1   1 1 1     1 1 2    1 1 2  4 5 7
webhook               1 1 1  2 2 2  2 2 2     2 2 2    1 2 2  1 2 2  1 2 2   1 2 2     1 1 1    1 1 1  4 8 8
mail                  1 1 1  2 2 2  2 2 2     2 2 2    1 2 1  1 2 1  1 2 1   1 2 1     1 1 1    1 1 1  4 8 4
kept-key,service      1 1 1  1 1 1  1 1 1     1 1 1    1 2 2  1 2 2  1 2 2   1 2 2     1 1 2    1 1 2  1 5 7
outbox,inbox          1 1 1  2 2 2  2 2 2     2 2 2    1 1 1  1 1 1  1 2 2   1 2 2     1 1 2    1 1 2  4 6 8
outbox,provider-key   1 1 1  2 2 2  2 2 2     2 2 2    1 1 1  1 1 1  1 1 1   1 2 2     1 1 2    1 1 2  4 5 7
outbox,look-up        1 1 1  2 2 2  2 2 2     2 2 2    1 1 1  1 1 1  1 1 1   1 1 1     1 1 2    1 1 2  4 4 6
all but kept-key      1 1 1  1 1 1  1 1 1     1 1 1    1 1 1  1 1 1  1 1 1   1 1 1     1 1 1    1 1 1  1 1 1
all but never-resend  1 1 1  1 1 1  1 1 1     1 1 1    1 1 1  1 1 1  1 1 1   1 1 1     1 1 1    1 1 1  1 1 1
all but service       1 1 1  1 1 1  1 1 1     1 1 1    1 1 1  1 1 1  1 1 1   1 1 1     1 1 1    1 1 1  1 1 1
all but business      1 1 1  1 1 1  1 1 1     1 1 1    1 1 1  1 1 1  1 1 1   1 1 1     1 1 1    1 1 1  1 1 1
all but outbox        1 1 1  1 1 1  1 1 1     1 1 1    1 2 1  1 1 1  1 1 1   1 1 1     1 1 1    1 1 1  1 2 1
all but inbox         1 1 1  1 1 1  1 1 1     1 1 1    1 1 1  1 1 1  1 1 1   1 1 1     1 1 1    1 1 1  1 1 1
all but provider-key  1 1 1  1 1 1  1 1 1     1 1 1    1 1 1  1 1 1  1 1 1   1 1 1     1 1 1    1 1 1  1 1 1
all but look-up       1 1 1  1 1 1  1 1 1     1 1 1    1 1 1  1 1 1  1 1 1   1 2 1     1 1 1    1 1 1  1 2 1
all but webhook       1 1 1  1 1 1  1 1 1     1 1 1    1 1 1  1 1 1  1 1 1   1 1 1     1 1 1    1 1 1  1 1 1
all but mail          1 1 1  1 1 1  1 1 1     1 1 1    1 1 1  1 1 1  1 1 1   1 1 1     1 1 1    1 1 1  1 1 1
all                   1 1 1  1 1 1  1 1 1     1 1 1    1 1 1  1 1 1  1 1 1   1 1 1     1 1 1    1 1 1  1 1 1
`

func TestMatrix(t *testing.T) {
	got, err := Matrix(t.Context(), open(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimSpace(matrix), "\n")
	if len(got) != len(want) {
		t.Fatalf("%d lines, want %d", len(got), len(want))
	}
	for i, cells := range got {
		if line := strings.Join(cells, " "); !slices.Equal(strings.Fields(line), strings.Fields(want[i])) {
			t.Errorf("line %d: got\n%s\nwant\n%s", i+1, line, want[i])
		}
	}
}

// On PostgreSQL it plays the same, and makes no table that outlives its connection.
func TestPostgreSQL(t *testing.T) {
	dsn := pgtest.Shared(t).NewDatabase(t)
	stage := open(t, dsn)
	for _, c := range cases {
		got := playOf(t, stage, c.broken, c.guards)
		if got.Payments != c.payments || got.Charges != c.charges || got.Receipts != c.receipts {
			t.Errorf("broken %s, guarded %s: %+v, want %d, %d, %d", c.broken, c.guards, got, c.payments, c.charges, c.receipts)
		}
	}
	const count = `SELECT count(*) FILTER (WHERE relpersistence = 't'), count(*) FILTER (WHERE relpersistence <> 't')
		FROM pg_class WHERE relkind = 'r' AND relname IN ('payments', 'outbox', 'idemd_inbox', 'idemd_once')`
	var temporary, lasting int
	if err := pgtest.Dial(t, dsn).QueryRow(t.Context(), count).Scan(&temporary, &lasting); err != nil || temporary != 4 || lasting != 0 {
		t.Errorf("%d temporary tables and %d others (%v), want 4 and none", temporary, lasting, err)
	}
}

func TestChoose(t *testing.T) {
	for names, want := range map[string]string{
		"none": "[]", "app": "[app]", "app,mail": "[app mail]",
		"all": fmt.Sprint(namesOf(Breaks)), "tap": "error", "": "error", "all,app": "error", "none,app": "error",
	} {
		set, err := Choose(Breaks, strings.Split(names, ","))
		got := "error"
		if err == nil {
			got = "["
			for _, hop := range namesOf(Breaks) {
				if set[hop] {
					got += " " + hop
				}
			}
			got = strings.Replace(got, "[ ", "[", 1) + "]"
		}
		if got != want {
			t.Errorf("%q: got %s (%v), want %s", names, got, err, want)
		}
	}
}

// A play that cannot go on says why, and has no result.
func TestBrokenOff(t *testing.T) {
	stage := open(t, "")
	if err := stage.db.close(); err != nil {
		t.Fatal(err)
	}
	if result, err := stage.Play(t.Context(), Set{}, Set{}); err == nil || !strings.Contains(err.Error(), "database is closed") {
		t.Errorf("got %+v, %v", result, err)
	}
}

func TestUnreachableDatabase(t *testing.T) {
	for _, dsn := range []string{"postgres://127.0.0.1:1/shop", "nonsense://"} {
		if _, err := Open(t.Context(), dsn); err == nil {
			t.Errorf("%s was opened", dsn)
		}
	}
}
