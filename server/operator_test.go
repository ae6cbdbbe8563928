package server

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/idemd/idemd/client"
	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

// hanging is a backend whose operators' calls do not come back before their context ends.
type hanging struct{ store.Backend }

func hang[A any](ctx context.Context) (answer A, err error) {
	<-ctx.Done()
	return answer, ctx.Err()
}

func (hanging) ListRecords(ctx context.Context, _ store.ListRequest) (store.RecordPage, error) {
	return hang[store.RecordPage](ctx)
}

func (hanging) InspectRecord(ctx context.Context, _ store.Key) (store.Inspection, error) {
	return hang[store.Inspection](ctx)
}

func (hanging) Resolve(ctx context.Context, _ store.ResolveRequest) (*store.Record, error) {
	return hang[*store.Record](ctx)
}

func (hanging) ForceRelease(ctx context.Context, _ store.ForceReleaseRequest) (*store.Record, error) {
	return hang[*store.Record](ctx)
}

func (hanging) ImportOutcome(ctx context.Context, _ store.ImportRequest) (store.ImportAnswer, error) {
	return hang[store.ImportAnswer](ctx)
}

func (hanging) BeginRecovery(ctx context.Context, _ store.BeginRecoveryRequest) (store.BegunRecovery, error) {
	return hang[store.BegunRecovery](ctx)
}

func (hanging) LiftRecovery(ctx context.Context, _ store.LiftRecoveryRequest) (store.Namespace, error) {
	return hang[store.Namespace](ctx)
}

func (hanging) CreateNamespace(ctx context.Context, _ store.Namespace) (store.Namespace, error) {
	return hang[store.Namespace](ctx)
}

func (hanging) GetNamespace(ctx context.Context, _ string) (store.Namespace, error) {
	return hang[store.Namespace](ctx)
}

func (hanging) UpdateNamespace(ctx context.Context, _ store.Namespace) (store.Namespace, error) {
	return hang[store.Namespace](ctx)
}

func (hanging) ListNamespaces(ctx context.Context) ([]store.Namespace, error) {
	return hang[[]store.Namespace](ctx)
}

func (hanging) Buckets(ctx context.Context) ([]store.Bucket, error) {
	return hang[[]store.Bucket](ctx)
}

// everyOperatorsCall makes one valid call of each method of the AdminService.
var everyOperatorsCall = map[string]func(context.Context, *client.Client) error{
	"ListRecords": func(ctx context.Context, c *client.Client) error {
		return only(c.ListRecords(ctx, store.ListRequest{Namespace: "default"}))
	},
	"InspectRecord": func(ctx context.Context, c *client.Client) error { return only(c.InspectRecord(ctx, testKey)) },
	"Resolve": func(ctx context.Context, c *client.Client) error {
		return only(c.Resolve(ctx, store.ResolveRequest{Key: testKey, AnyFence: true, Reason: "r"}))
	},
	"ForceRelease": func(ctx context.Context, c *client.Client) error {
		return only(c.ForceRelease(ctx, store.ForceReleaseRequest{Key: testKey, AnyFence: true, Reason: "r"}))
	},
	"ImportOutcome": func(ctx context.Context, c *client.Client) error {
		return only(c.ImportOutcome(ctx, store.ImportRequest{Key: testKey, Reason: "r"}))
	},
	"BeginRecovery": func(ctx context.Context, c *client.Client) error {
		return only(c.BeginRecovery(ctx, store.BeginRecoveryRequest{CompleteUntil: time.Unix(1, 0), Reason: "r"}))
	},
	"LiftRecovery": func(ctx context.Context, c *client.Client) error {
		return only(c.LiftRecovery(ctx, store.LiftRecoveryRequest{Namespace: "default", Reason: "r"}))
	},
	"CreateNamespace": func(ctx context.Context, c *client.Client) error {
		return only(c.CreateNamespace(ctx, store.Namespace{Name: "shop"}))
	},
	"GetNamespace": func(ctx context.Context, c *client.Client) error { return only(c.GetNamespace(ctx, "shop")) },
	"UpdateNamespace": func(ctx context.Context, c *client.Client) error {
		return only(c.UpdateNamespace(ctx, store.Namespace{Name: "shop"}))
	},
	"ListNamespaces": func(ctx context.Context, c *client.Client) error { return only(c.ListNamespaces(ctx)) },
	"ListBuckets":    func(ctx context.Context, c *client.Client) error { return only(c.Buckets(ctx)) },
}

// Case 38 for operators: the store does not answer.
func TestOperatorsCallsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, hanging{newMemory()})
		defer r.close()
		c := r.client()
		for _, m := range pb.AdminService_ServiceDesc.Methods {
			switch m.MethodName {
			case "Backup": // takes as long as it takes, or as its caller waits
				continue
			case "AcceptStore": // asks no store where there are no regions; package region has its test
				continue
			}
			call := everyOperatorsCall[m.MethodName]
			if call == nil {
				t.Errorf("no call of %s", m.MethodName)
				continue
			}
			for deadline, within := range map[time.Duration]time.Duration{
				0:           maxOperatorTime,
				time.Hour:   maxOperatorTime,
				time.Second: time.Second,
			} {
				ctx, cancel := context.WithCancel(t.Context())
				if deadline > 0 {
					ctx, cancel = context.WithTimeout(t.Context(), deadline)
				}
				// A call without an end would end the test only with the bubble.
				stop := time.AfterFunc(time.Hour/2, cancel)
				start := time.Now()
				err := call(ctx, c)
				var refused *store.Error
				if code, reason := reasonIn(err); code != codes.Unavailable || reason != "STORE_UNAVAILABLE" {
					t.Errorf("%s with deadline %v: %v", m.MethodName, deadline, err)
				} else if !errors.As(err, &refused) || refused.RetryAfter != time.Second || strings.Contains(err.Error(), "attempt id") {
					t.Errorf("%s: %v, again after %v", m.MethodName, err, refused.RetryAfter)
				}
				if took := time.Since(start); took > within {
					t.Errorf("%s with deadline %v: answered after %v", m.MethodName, deadline, took)
				}
				stop.Stop()
				cancel()
			}
		}
	})
}
