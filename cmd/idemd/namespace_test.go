package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
)

// meddling is an AdminService on which another operator changes a namespace whenever it was read.
type meddling struct {
	idemdv1.AdminServiceClient
	times int
	reads int
}

func (m *meddling) GetNamespace(ctx context.Context, req *idemdv1.GetNamespaceRequest, opts ...grpc.CallOption) (*idemdv1.GetNamespaceResponse, error) {
	read, err := m.AdminServiceClient.GetNamespace(ctx, req, opts...)
	m.reads++
	if err != nil || m.reads > m.times {
		return read, err
	}
	theirs, err := m.AdminServiceClient.GetNamespace(ctx, req, opts...)
	if err != nil {
		return nil, err
	}
	theirs.Namespace.Retention = durationpb.New(time.Duration(m.reads) * time.Hour)
	_, err = m.UpdateNamespace(ctx, &idemdv1.UpdateNamespaceRequest{Namespace: theirs.GetNamespace()}, opts...)
	return read, err
}

// Of two operators who change different settings at once, neither undoes what the other has done.
func TestSettingsOfTwoOperators(t *testing.T) {
	for name, store := range map[string]func(*testing.T) []string{
		"embedded": func(t *testing.T) []string { return []string{"--data-dir=" + t.TempDir()} },
		"postgres": func(t *testing.T) []string { return []string{"--store=" + migrated(t)} },
	} {
		t.Run(name, func(t *testing.T) {
			s := serveOn(t, store(t)...)
			s.run(t, "namespace", "create", "shop", "--tier=day").ok(t)
			conn, err := grpc.NewClient(s.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			admin := idemdv1.NewAdminServiceClient(conn)
			set := namespaceSetCmd{Name: "shop", settingFlags: settingFlags{LapsePolicy: "hold"}}
			updated, err := set.set(t.Context(), &meddling{AdminServiceClient: admin, times: setTries - 1})
			if err != nil {
				t.Fatal(err)
			}
			if ns := updated.GetNamespace(); ns.GetLapsePolicy() != idemdv1.LapsePolicy_LAPSE_POLICY_HOLD || ns.GetRetention().AsDuration() != (setTries-1)*time.Hour {
				t.Errorf("what one has set is undone: %v", ns)
			}
			set.LapsePolicy = "takeover"
			_, err = set.set(t.Context(), &meddling{AdminServiceClient: admin, times: setTries})
			if got := fmt.Sprint((&remoteFlags{}).explain(err, time.Second)); !strings.HasPrefix(got, namespaceChanged+": ") {
				t.Errorf("it never ends: %s", got)
			}
			if ns, err := admin.GetNamespace(t.Context(), &idemdv1.GetNamespaceRequest{Name: "shop"}); err != nil || ns.GetNamespace().GetLapsePolicy() != idemdv1.LapsePolicy_LAPSE_POLICY_HOLD {
				t.Errorf("it was set although it was refused: %v, %v", ns, err)
			}
		})
	}
}

// A floor that is lifted while another operator changes something else stays lifted.
func TestSettingsDoNotBringBackAFloor(t *testing.T) {
	s := serve(t, t.TempDir())
	s.run(t, "namespace", "create", "shop", "--recovery-floor=2026-01-31T00:00:00Z").ok(t)
	set := namespaceSetCmd{Name: "shop", settingFlags: settingFlags{LapsePolicy: "hold"}}
	conn, err := grpc.NewClient(s.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	updated, err := set.set(t.Context(), lifting{idemdv1.NewAdminServiceClient(conn)})
	if err != nil || updated.GetNamespace().GetRecoveryFloor() != nil {
		t.Errorf("%v, %v; want no floor", updated, err)
	}
}

// lifting is an AdminService on which another operator lifts the floor after it was read.
type lifting struct{ idemdv1.AdminServiceClient }

func (l lifting) GetNamespace(ctx context.Context, req *idemdv1.GetNamespaceRequest, opts ...grpc.CallOption) (*idemdv1.GetNamespaceResponse, error) {
	read, err := l.AdminServiceClient.GetNamespace(ctx, req, opts...)
	if err == nil {
		_, err = l.LiftRecovery(ctx, &idemdv1.LiftRecoveryRequest{Namespace: req.GetName(), Actor: "ann", Reason: "settled", NothingKnown: true}, opts...)
	}
	return read, err
}

func TestRecoveryFloorsThatHaveNotCome(t *testing.T) {
	s := serve(t, t.TempDir())
	s.run(t, "namespace", "set", "default", "--recovery-floor=2100-01-01T00:00:00Z").fails(t, exitFailed, "INVALID_ARGUMENT: ", "in the future", "the present at most")
	s.run(t, "namespace", "create", "shop", "--recovery-floor=2100-01-01T00:00:00Z").fails(t, exitFailed, "INVALID_ARGUMENT: ", "in the future")
}
