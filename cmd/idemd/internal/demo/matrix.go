package demo

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// pairs are guards that only guard together, each of them by itself and with the one that it needs.
var pairs = [][]string{
	{guardKeptKey, guardService},
	{guardOutbox, guardInbox},
	{guardOutbox, guardProviderKey},
	{guardOutbox, guardLookUp},
}

// Matrix plays every break with no guard, each one, some pairs, all but each one, and all. It returns a table with a head:
// in each cell payment rows, charges and receipts.
func Matrix(ctx context.Context, s *Stage) ([][]string, error) {
	hops := append(append([]string{"none"}, namesOf(Breaks)...), "all")
	table := [][]string{append([]string{"guards \\ broken"}, hops...)}
	for _, row := range rows() {
		cells := []string{row.name}
		for _, hop := range hops {
			broken, err := Choose(Breaks, []string{hop})
			if err != nil {
				return nil, err
			}
			r, err := s.Play(ctx, broken, row.guards)
			if err != nil {
				return nil, fmt.Errorf("broken %s, guards %s: %w", hop, row.name, err)
			}
			cells = append(cells, fmt.Sprintf("%d %d %d", r.Payments, r.Charges, r.Receipts))
		}
		table = append(table, cells)
	}
	return table, nil
}

type row struct {
	name   string
	guards Set
}

func rows() []row {
	all := namesOf(Guards)
	list := []row{{"none", Set{}}}
	for _, name := range all {
		list = append(list, row{name, setOf(name)})
	}
	for _, pair := range pairs {
		list = append(list, row{strings.Join(pair, ","), setOf(pair...)})
	}
	for _, name := range all {
		others := slices.DeleteFunc(slices.Clone(all), func(other string) bool { return other == name })
		list = append(list, row{"all but " + name, setOf(others...)})
	}
	return append(list, row{"all", setOf(all...)})
}
