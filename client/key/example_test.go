package key_test

import (
	"fmt"
	"time"

	"github.com/idemd/idemd/client/key"
)

// Made once, when the intent is, and kept with it.
func ExampleNew() {
	order := key.New()
	fmt.Println(len(order), time.Since(key.Time(order)) < time.Minute)
	// Output: 36 true
}

// Each step has a key of its own, and no two are alike however their parts are split.
func ExampleChild() {
	fmt.Println(key.Child("order-1001", "charge"))
	fmt.Println(key.Child("order-1001c", "harge"))
	// Output:
	// 61266783974625223328aec259d4f76119615158e10697be033f9208b4442d86
	// 6e9241ea35265685e000a2167cf61fded7fde067cd765d5efc123d4e41fde09b
}

// The first card was declined: that is the answer to the first payment, for good. The second
// card is another payment for the same order.
func ExampleAttempt() {
	payment := 2 // kept with the order; counts up when the customer gives another card
	fmt.Println(key.Attempt("order-1001", payment) != key.Attempt("order-1001", 1))
	// Output: true
}

// The instant for which the run was scheduled, in whatever zone the scheduler thinks.
func ExampleSlot() {
	berlin := time.FixedZone("CET", 3600)
	fmt.Println(key.Slot("nightly", time.Date(2026, 10, 28, 3, 0, 0, 0, berlin)))
	// Output: nightly@2026-10-28T02:00Z
}
