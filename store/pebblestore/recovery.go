package pebblestore

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/idemd/idemd/store"
)

// ImportOutcome implements [store.Records].
func (s *Store) ImportOutcome(ctx context.Context, req store.ImportRequest) (store.ImportAnswer, error) {
	var answer store.ImportAnswer
	err := s.onKey(ctx, classSettle, &req.Key, outcomeBytes(req.Outcome), req.Validate(),
		func(old *store.Record, ns *store.Namespace, now time.Time) (change store.Change, err error) {
			answer, change, err = store.DecideImport(old, ns, req, now)
			return change, err
		})
	if err != nil {
		return store.ImportAnswer{}, err
	}
	return answer, nil
}

// BeginRecovery implements [store.Recovery].
func (s *Store) BeginRecovery(ctx context.Context, req store.BeginRecoveryRequest) (store.BegunRecovery, error) {
	if err := req.Validate(); err != nil {
		return store.BegunRecovery{}, err
	}
	var begun store.BegunRecovery
	err := s.do(ctx, classSettle, onNamespaces, 0, func(t *turn) error {
		if err := req.Check(t.now); err != nil {
			return err
		}
		begun.Now, begun.InForce = t.now, t.now
		for _, ns := range t.l.namespaces {
			if !req.Concerns(ns.Name) {
				continue
			}
			next := ns.BeginRecovery(req, t.now)
			begun.Namespaces = append(begun.Namespaces, next)
			if err := t.setNamespace(&next); err != nil {
				return err
			}
		}
		switch {
		case req.Namespace == "":
			return t.leave()
		case len(begun.Namespaces) == 0:
			return store.NamespaceUnknown(req.Namespace)
		}
		return nil
	})
	if err != nil {
		return store.BegunRecovery{}, err
	}
	slices.SortFunc(begun.Namespaces, func(a, b store.Namespace) int { return strings.Compare(a.Name, b.Name) })
	return begun, nil
}

// LiftRecovery implements [store.Recovery].
func (s *Store) LiftRecovery(ctx context.Context, req store.LiftRecoveryRequest) (store.Namespace, error) {
	if err := req.Validate(); err != nil {
		return store.Namespace{}, err
	}
	return s.onNamespace(ctx, func(t *turn) (store.Namespace, error) {
		old := t.l.namespaces[req.Target()]
		if old == nil {
			return store.Namespace{}, store.NamespaceUnknown(req.Target())
		}
		next, err := old.LiftRecovery(req, t.now)
		if err != nil {
			return store.Namespace{}, err
		}
		return next, t.setNamespace(&next)
	})
}

// storedStep is the JSON of a step of a recovery on disk.
type storedStep struct {
	At            time.Time `json:"at"`
	Kind          uint8     `json:"kind"`
	ForNew        bool      `json:"for_new,omitempty"`
	Floor         time.Time `json:"floor"`
	CompleteUntil time.Time `json:"complete_until,omitzero"`
	Actor         string    `json:"actor"`
	Reason        string    `json:"reason"`
}

func storedSteps(steps []store.RecoveryStep) (stored []storedStep) {
	for _, s := range steps {
		stored = append(stored, storedStep{s.At, uint8(s.Kind), s.ForNew, s.Floor, s.CompleteUntil, s.Actor, s.Reason})
	}
	return stored
}

func stepsOf(stored []storedStep) (steps []store.RecoveryStep) {
	for _, s := range stored {
		steps = append(steps, store.RecoveryStep{At: s.At, Kind: store.RecoveryKind(s.Kind), ForNew: s.ForNew, Floor: s.Floor,
			CompleteUntil: s.CompleteUntil, Actor: s.Actor, Reason: s.Reason})
	}
	return steps
}
