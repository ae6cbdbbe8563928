package region

import (
	"time"

	"github.com/idemd/idemd/region/placement"
)

// Observer is told what happens between regions. Its methods may be called by any number of
// goroutines and return at once.
type Observer interface {
	// PeerUp says whether a region can be reached.
	PeerUp(region string, up bool)
	// RoundTrip is how long a region took to answer a ping.
	RoundTrip(region string, took time.Duration)
	// Forwarded counts an operation whose home is another region.
	Forwarded(home string, result ForwardResult)
	// StoodIn counts an operation that was carried out in another region's store, in its stead.
	StoodIn(home string)
	// Disputed is how many namespaces have other placements elsewhere.
	Disputed(namespaces int)
	// Joined says whether this region's store is a home.
	Joined(bool)
	// Stranger says whether a region has another store than the one that is known.
	Stranger(region string, is bool)
	// Moving is for how long this server has seen a namespace at a stage of a move. AtRest says
	// that it does not move any more.
	Moving(namespace string, stage placement.Stage, lasts time.Duration)
}

// ForwardResult is what became of an operation whose home is another region.
type ForwardResult = string

// The results.
const (
	// ForwardAnswered: the home answered. ForwardRefused: it refused.
	ForwardAnswered ForwardResult = "answered"
	ForwardRefused  ForwardResult = "refused"
	// ForwardUnsent: the home could not be reached, and was not asked.
	ForwardUnsent ForwardResult = "unsent"
	// ForwardBroken: the home was asked and did not answer.
	ForwardBroken ForwardResult = "broken"
	// ForwardCanceled: the caller did not wait for the answer.
	ForwardCanceled ForwardResult = "canceled"
)

// nobody observes nothing.
type nobody struct{}

func (nobody) PeerUp(string, bool)             {}
func (nobody) RoundTrip(string, time.Duration) {}
func (nobody) Forwarded(string, ForwardResult) {}
func (nobody) StoodIn(string)                  {}
func (nobody) Disputed(int)                    {}
func (nobody) Joined(bool)                     {}
func (nobody) Stranger(string, bool)           {}

func (nobody) Moving(string, placement.Stage, time.Duration) {}
