package storetest

import "testing"

func TestMemory(t *testing.T) { Run(t, MemoryFactory) }

func BenchmarkMemory(b *testing.B) { Benchmark(b, MemoryFactory) }
