package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
	"github.com/idemd/idemd/store/storetest"
)

// The name is the caller's, and a disk that is full is not.
func TestBackupErrors(t *testing.T) {
	for _, c := range []struct {
		err  error
		code codes.Code
		is   error
		says string
	}{
		{fmt.Errorf("back up to /b/one: %w", fs.ErrExist), codes.InvalidArgument, store.ErrInvalidArgument, "/b/one: file already exists"},
		{fmt.Errorf("back up to /b/one: %w", syscall.ENOSPC), codes.Unavailable, store.ErrUnavailable, "no backup was made: back up to /b/one: no space left"},
		{fs.ErrNotExist, codes.Unavailable, store.ErrUnavailable, "no backup was made"},
		{store.Refuse(store.ErrOverloaded, "later"), codes.ResourceExhausted, store.ErrOverloaded, "later"},
	} {
		r := newRigOf(t, Config{Backend: storetest.MemoryFactory(t).Backend, Backup: func(context.Context, string, int) (MadeBackup, error) { return MadeBackup{}, c.err }})
		_, err := pb.NewAdminServiceClient(r.connect()).Backup(t.Context(), &pb.BackupRequest{Name: "one"})
		if status.Code(err) != c.code || !errors.Is(storepb.FromStatus(err), c.is) || !strings.Contains(fmt.Sprint(err), c.says) {
			t.Errorf("%v: %v, want %v that says %q", c.err, err, c.code, c.says)
		}
		r.close()
	}
}
