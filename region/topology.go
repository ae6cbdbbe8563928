package region

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/idemd/idemd/region/placement"
	"github.com/idemd/idemd/region/strictyaml"
	"github.com/idemd/idemd/store"
)

// anyNamespace in the placements of a topology is every namespace that is not named.
const anyNamespace = "*"

// Topology is which regions there are, and where the keys of new namespaces live.
type Topology struct {
	// Regions by name.
	Regions map[string]Place
	// Rules by namespace, "*" for all others, of namespaces that have no placement yet.
	Rules map[string]placement.Rule
}

// Place is where a region is.
type Place struct {
	// Address is where callers reach its servers, host:port, as seen from the region that has
	// the file; PeerAddress is where that region's own servers reach them.
	Address, PeerAddress string
	// Principal is who its servers must prove to be, with TLS. Empty: anybody with the role.
	Principal string
}

// topologyFile is how a topology is written.
type topologyFile struct {
	Regions map[string]struct {
		Address     string `yaml:"address"`
		PeerAddress string `yaml:"peer-address"`
		Principal   string `yaml:"principal"`
	} `yaml:"regions"`
	Placements map[string]string `yaml:"placements"`
}

// LoadTopology reads the file of a region's server.
func LoadTopology(path, own string) (*Topology, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	t, err := ParseTopology(text, own)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// ParseTopology reads the topology of the region own, and refuses what cannot be meant.
func ParseTopology(text []byte, own string) (*Topology, error) {
	file, err := decodeTopology(text)
	if err != nil {
		return nil, err
	}
	t := &Topology{Regions: map[string]Place{}, Rules: map[string]placement.Rule{}}
	for _, name := range slices.Sorted(maps.Keys(file.Regions)) {
		entry := file.Regions[name]
		place := Place{Address: entry.Address, PeerAddress: entry.PeerAddress, Principal: entry.Principal}
		if place.PeerAddress == "" {
			place.PeerAddress = place.Address
		}
		if err := t.add(name, place, own); err != nil {
			return nil, err
		}
	}
	if _, ok := t.Regions[own]; !ok {
		return nil, fmt.Errorf("this server's own region, %q, is not among its regions (%s): name it there, or start the server with one of them",
			own, strings.Join(t.names(), ", "))
	}
	for _, namespace := range slices.Sorted(maps.Keys(file.Placements)) {
		if err := t.place(namespace, file.Placements[namespace]); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func decodeTopology(text []byte) (*topologyFile, error) {
	var file topologyFile
	if err := strictyaml.Decode(text, &file); err != nil {
		return nil, err
	}
	if len(file.Regions) == 0 {
		return nil, errors.New("it names no regions")
	}
	return &file, nil
}

// add adds a region whose addresses no other one has.
func (t *Topology) add(name string, place Place, own string) error {
	if err := placement.CheckRegion(name); err != nil {
		return err
	}
	for _, addr := range [...]string{place.Address, place.PeerAddress} {
		if err := checkAddress(addr); err != nil {
			return fmt.Errorf("region %s: %w", name, err)
		}
	}
	for _, other := range t.names() {
		at := t.Regions[other]
		shared := at.shared(place)
		switch {
		case shared == "":
		case name == own || other == own:
			if name == own {
				name = other
			}
			return fmt.Errorf("region %s has the address of this server's own region, %s: %s; this region would be its own peer", name, own, shared)
		default:
			return fmt.Errorf("regions %s and %s have one address, %s; each has its own", other, name, shared)
		}
	}
	t.Regions[name] = place
	return nil
}

// shared is an address that both have.
func (p Place) shared(q Place) string {
	for _, one := range [...]string{p.Address, p.PeerAddress} {
		if strings.EqualFold(one, q.Address) || strings.EqualFold(one, q.PeerAddress) {
			return one
		}
	}
	return ""
}

func checkAddress(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err == nil && host != "" {
		if n, err := strconv.Atoi(port); err == nil && n > 0 && n <= 65535 {
			return nil
		}
	}
	return fmt.Errorf("address %q is not HOST:PORT, such as idemd.eu.example.com:7600", addr)
}

// place adds the rule of a namespace.
func (t *Topology) place(namespace, text string) error {
	if namespace != anyNamespace {
		if err := store.ValidateNamespaceName(namespace); err != nil {
			return fmt.Errorf("placements: %q: %w", namespace, err)
		}
	}
	rule, err := placement.ParseRule(text)
	if err != nil {
		return fmt.Errorf("placements: %s: %w", namespace, err)
	}
	if missing := t.missing(rule); missing != "" {
		return fmt.Errorf("placements: %s: rule %q names the region %q, which is not among the regions (%s)",
			namespace, rule, missing, strings.Join(t.names(), ", "))
	}
	t.Rules[namespace] = rule
	return nil
}

// rule is the one by which a namespace gets its first placement.
func (t *Topology) rule(namespace string) (placement.Rule, bool) {
	rule, ok := t.Rules[namespace]
	if !ok {
		rule, ok = t.Rules[anyNamespace]
	}
	return rule, ok
}

// missing is a region that the rule names and that is not there.
func (t *Topology) missing(rule placement.Rule) string {
	for _, name := range rule.Regions() {
		if _, ok := t.Regions[name]; !ok {
			return name
		}
	}
	return ""
}

func (t *Topology) names() []string { return slices.Sorted(maps.Keys(t.Regions)) }

// checkStore refuses namespaces of a store that the topology does not fit.
func (t *Topology) checkStore(namespaces []store.Namespace) error {
	for _, ns := range namespaces {
		if ns.Placement == (store.Placement{}) {
			if _, ok := t.rule(ns.Name); !ok {
				return fmt.Errorf("namespace %q of the store has no placement, and no rule of the topology gives it one: add it to placements, or \"*\", in every region", ns.Name)
			}
			continue
		}
		rule, err := placement.ParseRule(ns.Placement.Rule)
		if err != nil {
			return fmt.Errorf("the stored placement of namespace %q is not understood; is this program older than the one that stored it? %w", ns.Name, err)
		}
		if missing := t.missing(rule); missing != "" {
			return fmt.Errorf("namespace %q is placed by %q (epoch %d), and the region %q is not in the topology: add it, or move the namespace first", ns.Name, rule, ns.Placement.Epoch, missing)
		}
	}
	return nil
}
