package client

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc"
)

// infrastructure holds the services of gRPC itself, which nobody declares.
var infrastructure = []string{"grpc.health.v1.", "grpc.reflection.", "grpc.channelz.", "grpc.binarylog."}

// Verify checks the guard against the services that are registered with a server, usually a
// *grpc.Server. It names every method that nobody has declared guarded or unguarded, so
// that none is left unguarded by mistake; every one that is declared guarded but cannot be;
// and every method given to [Method], [RecoverMethod] or [Unguarded] that does not exist.
func (g *Guard) Verify(server interface {
	GetServiceInfo() map[string]grpc.ServiceInfo
}) error {
	errs := []error{g.wrong}
	registered := map[string]bool{}
	for service, info := range server.GetServiceInfo() {
		for _, m := range info.Methods {
			name := "/" + service + "/" + m.Name
			registered[name] = true
			errs = append(errs, g.verifyMethod(name, m))
		}
	}
	named := slices.Concat(slices.Collect(maps.Keys(g.options.methods)), slices.Collect(maps.Keys(g.options.recovers)), slices.Collect(maps.Keys(g.options.unguarded)))
	slices.Sort(named)
	for _, name := range slices.Compact(named) {
		if !registered[name] {
			errs = append(errs, fmt.Errorf("method %s is not registered with the server; names are like /pay.v1.Payments/Charge", name))
		}
	}
	return inOrder(errs)
}

func (g *Guard) verifyMethod(name string, info grpc.MethodInfo) error {
	m, err := newMethod(name, g.options)
	switch {
	case err != nil:
		return err
	case m.declared, isInfrastructure(name):
		return nil
	case info.IsClientStream || info.IsServerStream:
		return fmt.Errorf("method %s: nobody has said whether it needs a guard; it is a streaming method and cannot have one: declare it with client.Unguarded, or the option idempotency_level = NO_SIDE_EFFECTS", name)
	default:
		return fmt.Errorf("method %s: nobody has said whether it needs a guard; declare it with the option (idemd.options.v1.idempotency), client.Method or client.Unguarded", name)
	}
}

func isInfrastructure(name string) bool {
	return slices.ContainsFunc(infrastructure, func(prefix string) bool { return strings.HasPrefix(name, "/"+prefix) })
}

// inOrder joins errors so that the same ones make the same text.
func inOrder(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	slices.SortStableFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}
