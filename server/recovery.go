package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// BackupFunc makes a backup of the store in a new directory of the name, and removes older ones
// until so many are left, unless keep is 0. Its errors are told to the operator who asked.
type BackupFunc func(ctx context.Context, name string, keep int) (MadeBackup, error)

// MadeBackup is a backup that was made.
type MadeBackup struct {
	Directory string
	At        time.Time
	Removed   []string // the names of older ones
}

// Backup implements the AdminService.
func (s *adminService) Backup(ctx context.Context, m *pb.BackupRequest) (*pb.BackupResponse, error) {
	name := m.GetName()
	switch {
	case s.backup == nil:
		return nil, store.Refuse(store.ErrInvalidArgument,
			"this server makes no backups: of a database they are made with its own tools, and for an embedded store the server is started with --backup-root DIR")
	case name == "" || len(name) > maxBackupName || strings.Trim(name, backupNameChars) != "" || strings.HasPrefix(name, "."):
		return nil, store.Refuse(store.ErrInvalidArgument, fmt.Sprintf(
			"the name of a backup is 1 to %d of a-z, A-Z, 0-9, '-', '_' and '.', not starting with '.'; it is a directory below the one that the server was given", maxBackupName))
	}
	made, err := s.backup(ctx, name, int(m.GetKeep()))
	if err != nil {
		return nil, backupError(err)
	}
	return &pb.BackupResponse{Directory: made.Directory, At: timestamppb.New(made.At), Removed: made.Removed}, nil
}

// backupError is what an operator is told. The name is the operator's, and all else is not.
func backupError(err error) error {
	var refused *store.Error
	switch {
	case errors.As(err, &refused):
		return err
	case errors.Is(err, fs.ErrExist):
		return store.Refuse(store.ErrInvalidArgument, err.Error())
	}
	return &store.Error{Sentinel: store.ErrUnavailable, Detail: "no backup was made: " + err.Error(), Cause: err}
}

const (
	maxBackupName   = 128
	backupNameChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
)

// BeginRecovery implements the AdminService.
func (s *adminService) BeginRecovery(ctx context.Context, m *pb.BeginRecoveryRequest) (*pb.BeginRecoveryResponse, error) {
	req, err := accept(s.metrics, opBeginRecovery, m, acted(ctx, storepb.BeginRecoveryRequestFromProto, func(r *store.BeginRecoveryRequest) *string { return &r.Actor }))
	if err != nil {
		return nil, err
	}
	begun, err := s.backend.BeginRecovery(ctx, req)
	if err == nil {
		err = awaitForce(ctx, begun)
	}
	return respond(begun, err, storepb.BegunRecoveryToProto)
}

// awaitForce returns once a recovery that has begun is in force.
func awaitForce(ctx context.Context, begun store.BegunRecovery) error {
	timer := time.NewTimer(begun.InForce.Sub(begun.Now))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// LiftRecovery implements the AdminService.
func (s *adminService) LiftRecovery(ctx context.Context, m *pb.LiftRecoveryRequest) (*pb.LiftRecoveryResponse, error) {
	req, err := accept(s.metrics, opLiftRecovery, m, acted(ctx, storepb.LiftRecoveryRequestFromProto, func(r *store.LiftRecoveryRequest) *string { return &r.Actor }))
	if err != nil {
		return nil, err
	}
	ns, err := s.backend.LiftRecovery(ctx, req)
	return respond(ns, err, func(ns store.Namespace) *pb.LiftRecoveryResponse {
		return &pb.LiftRecoveryResponse{Namespace: storepb.NamespaceToProto(ns)}
	})
}

// ImportOutcome implements the AdminService.
func (s *adminService) ImportOutcome(ctx context.Context, m *pb.ImportOutcomeRequest) (*pb.ImportOutcomeResponse, error) {
	req, err := accept(s.metrics, opImportOutcome, m, acted(ctx, storepb.ImportRequestFromProto, func(r *store.ImportRequest) *string { return &r.Actor }))
	if err != nil {
		return nil, err
	}
	answer, err := s.backend.ImportOutcome(ctx, req)
	return respond(answer, err, storepb.ImportAnswerToProto)
}

// ImportOutcome implements [store.Records].
func (a *asking) ImportOutcome(ctx context.Context, req store.ImportRequest) (store.ImportAnswer, error) {
	return askFor(ctx, a, opImportOutcome, req, a.Backend.ImportOutcome)
}

// BeginRecovery implements [store.Recovery].
func (a *asking) BeginRecovery(ctx context.Context, req store.BeginRecoveryRequest) (store.BegunRecovery, error) {
	return askFor(ctx, a, opBeginRecovery, req, a.Backend.BeginRecovery)
}

// LiftRecovery implements [store.Recovery].
func (a *asking) LiftRecovery(ctx context.Context, req store.LiftRecoveryRequest) (store.Namespace, error) {
	return askFor(ctx, a, opLiftRecovery, req, a.Backend.LiftRecovery)
}

func (c *counted) ImportOutcome(ctx context.Context, req store.ImportRequest) (store.ImportAnswer, error) {
	answer, err := c.Backend.ImportOutcome(ctx, req)
	c.metrics.done(opImportOutcome, req.Key.Namespace, err)
	return answer, err
}

func (c *counted) BeginRecovery(ctx context.Context, req store.BeginRecoveryRequest) (store.BegunRecovery, error) {
	begun, err := c.Backend.BeginRecovery(ctx, req)
	c.metrics.done(opBeginRecovery, "", err)
	return begun, err
}

func (c *counted) LiftRecovery(ctx context.Context, req store.LiftRecoveryRequest) (store.Namespace, error) {
	ns, err := c.Backend.LiftRecovery(ctx, req)
	c.metrics.done(opLiftRecovery, req.Target(), err)
	return ns, err
}
