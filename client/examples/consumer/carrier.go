package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// carrier has a file for each parcel that it shipped, named by the key that it was given.
type carrier struct{ dir string }

func (c carrier) ship(ctx context.Context, key, address string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(c.dir, key), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil // it was shipped before, under this key
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(address + "\n")
	return errors.Join(err, f.Close())
}
