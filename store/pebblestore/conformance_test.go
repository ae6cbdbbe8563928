package pebblestore_test

import (
	"testing"

	"github.com/idemd/idemd/store/pebblestore/pebbletest"
	"github.com/idemd/idemd/store/storetest"
)

func TestConformance(t *testing.T) { storetest.Run(t, storetest.Brief(t, 4, pebbletest.Factory)) }
