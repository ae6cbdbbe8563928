package region

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/idemd/idemd/store"
)

const threeRegions = `
regions:
  eu: {address: "idemd.eu.example.com:7600", principal: "spiffe://example.org/idemd/eu"}
  us: {address: "idemd.us.example.com:7600", peer-address: "10.1.0.5:7600"}
  ap: {address: "[::1]:7600"}
placements:
  payments: fixed eu
  orders: prefix eu-=eu us-=us *=eu   # by the longest prefix
  "*": spread us eu ap
`

func TestATopologyIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "topology.yaml")
	if err := os.WriteFile(path, []byte(threeRegions), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := LoadTopology(path, "us")
	if err != nil {
		t.Fatal(err)
	}
	if eu := got.Regions["eu"]; eu != (Place{"idemd.eu.example.com:7600", "idemd.eu.example.com:7600", "spiffe://example.org/idemd/eu"}) {
		t.Errorf("eu is %+v", eu)
	}
	if us := got.Regions["us"]; us.PeerAddress != "10.1.0.5:7600" || us.Address != "idemd.us.example.com:7600" {
		t.Errorf("us is %+v", us)
	}
	for namespace, want := range map[string]string{"payments": "fixed eu", "orders": "prefix eu-=eu us-=us *=eu", "else": "spread ap eu us"} {
		if rule, ok := got.rule(namespace); !ok || rule.String() != want {
			t.Errorf("%s: %q, %v; want %q", namespace, rule, ok, want)
		}
	}
}

func TestWhatIsNoTopologyIsRefused(t *testing.T) {
	regions := "regions:\n  eu: {address: \"eu:1\"}\n  us: {address: \"us:1\"}\n"
	for text, says := range map[string]string{
		"":                                   "names no regions",
		"regions: {}":                        "names no regions",
		"regions: [eu]":                      "cannot unmarshal",
		"region: {}":                         "field region not found",
		regions + "---\nregions: {}\n":       "more than one document",
		regions + "placement: {}":            "field placement not found",
		"regions: {us: {address: \"us:1\"}}": `own region, "eu", is not among its regions (us)`,
		"regions:\n  eu: {address: \"eu:1\"}\n  eu: {address: \"x:1\"}\n":                                          `"eu" already defined`,
		"regions: {EU: {address: \"eu:1\"}}":                                                                       `region "EU"`,
		"regions: {eu: {addr: \"eu:1\"}}":                                                                          "field addr not found",
		"regions: {eu: {}}":                                                                                        `region eu: address ""`,
		"regions: {eu: {address: \"eu\"}}":                                                                         `address "eu" is not HOST:PORT`,
		"regions: {eu: {address: \":7600\"}}":                                                                      `address ":7600" is not HOST:PORT`,
		"regions: {eu: {address: \"eu:0\"}}":                                                                       `address "eu:0" is not HOST:PORT`,
		"regions: {eu: {address: \"eu:grpc\"}}":                                                                    `is not HOST:PORT`,
		"regions: {eu: {address: \"eu:1\", peer-address: x}}":                                                      `address "x" is not HOST:PORT`,
		"regions: {eu: {address: \"x:1\"}, us: {address: \"X:1\"}}":                                                "region us has the address of this server's own region, eu: x:1",
		"regions: {eu: {address: \"x:1\"}, ap: {address: \"x:1\"}}":                                                "region ap has the address of this server's own region, eu: x:1",
		"regions: {eu: {address: \"x:1\"}, us: {address: \"y:1\", peer-address: \"x:1\"}}":                         "region us has the address of this server's own region",
		"regions: {eu: {address: \"x:1\"}, us: {address: \"y:1\"}, ap: {address: \"z:1\", peer-address: \"y:1\"}}": "regions ap and us have one address",
		"regions: {eu: {address: \"eu:1\", principal: }}":                                                          "line 1: a value is missing", // not: anybody
		regions + "placements: {payments: fixed ap}":                                                               `names the region "ap", which is not among the regions (eu, us)`,
		regions + "placements: {payments: eu}":                                                                     "must begin with",
		regions + "placements: {Payments: fixed eu}":                                                               `"Payments"`,
		regions + "placements: {\"**\": fixed eu}":                                                                 `"**"`,
		regions + "placements: {a: fixed eu, a: fixed us}":                                                         `"a" already defined`,
		regions + "placements: {a: [fixed, eu]}":                                                                   "cannot unmarshal",
	} {
		if _, err := ParseTopology([]byte(text), "eu"); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s\n%v\nwant that it says %s", text, err, says)
		}
	}
}

func TestAFileThatIsWrongIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "topology.yaml")
	if _, err := LoadTopology(path, "eu"); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a file that is not there: %v", err)
	}
	if err := os.WriteFile(path, []byte("regions: {}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadTopology(path, "eu"); err == nil || !strings.Contains(err.Error(), path+": it names no regions") {
		t.Errorf("an empty one: %v", err)
	}
}

func TestAStoreThatTheTopologyDoesNotFitIsRefused(t *testing.T) {
	top, err := ParseTopology([]byte("regions: {eu: {address: \"eu:1\"}, us: {address: \"us:1\"}}\nplacements: {payments: fixed eu}"), "eu")
	if err != nil {
		t.Fatal(err)
	}
	placed := func(rule string) store.Namespace {
		return store.Namespace{Name: "other", Placement: store.Placement{Epoch: 3, Revision: 9, Rule: rule}}
	}
	for says, ns := range map[string]store.Namespace{
		`namespace "orders" of the store has no placement, and no rule`: {Name: "orders"},
		`the region "ap" is not in the topology`:                        placed("spread eu ap"),
		`is not understood`:                                             placed("nearest eu"),
	} {
		if err := top.checkStore([]store.Namespace{{Name: "payments"}, ns}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v, want that it says %s", ns, err, says)
		}
	}
	if err := top.checkStore([]store.Namespace{{Name: "payments"}, placed("fixed us")}); err != nil {
		t.Errorf("a store that fits: %v", err)
	}
}
