package main

import (
	"fmt"
	"strconv"

	"github.com/idemd/idemd/client/key"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// keyCmd makes the keys that programs make with package client/key, for whoever has one key and looks
// for the next. What goes to standard output is the key alone, so that it can be used in $(…).
type keyCmd struct {
	Step    keyStepCmd    `cmd:"" help:"Print the key of a step of a record's intent: what the next service or the provider was given (StepKey, SetStepKey, DownstreamKey)."`
	Child   keyChildCmd   `cmd:"" help:"Print the key of a step of an intent that is named by its key's id alone: Child of package client/key."`
	Event   keyEventCmd   `cmd:"" help:"Print the key under which a consumer handles an event: Event of package client/key."`
	Slot    keySlotCmd    `cmd:"" help:"Print the key of a run of a scheduled job: Slot of package client/key."`
	Attempt keyAttemptCmd `cmd:"" help:"Print the key of the nth operation that serves one purpose, such as a second card: Attempt of package client/key."`
	New     keyNewCmd     `cmd:"" help:"Draw the key of a new intent: New of package client/key. Keep it with the intent, and send it with every repeat."`
}

type keyStepCmd struct {
	keyFlags
	Step string `arg:"" help:"The step as the program names it, such as charge."`
}

// Run is called by kong.
func (c *keyStepCmd) Run(s *session) error {
	of := storepb.KeyFromProto(c.key())
	if err := of.Validate(); err != nil { // of a key that no record has
		return usageError("%v", err)
	}
	return printKey(s, key.Downstream(of, c.Step))
}

type keyChildCmd struct {
	Parent string `arg:"" help:"Id of the intent's key."`
	Step   string `arg:"" help:"The step as the program names it, such as charge."`
}

// Run is called by kong.
func (c *keyChildCmd) Run(s *session) error {
	if c.Parent == "" {
		return usageError("<parent> is empty: give the id of the intent's key")
	}
	return printKey(s, key.Child(c.Parent, c.Step))
}

type keyEventCmd struct {
	Source string `arg:"" help:"Within what ids of events are unique, such as the topic: the Source that the consumer gives. It may be empty."`
	ID     string `arg:"" name:"id" help:"The event's id, which its producer gave it."`
}

// Run is called by kong.
func (c *keyEventCmd) Run(s *session) error {
	if c.ID == "" {
		return usageError("<id> is empty: give the id that the event's producer gave it")
	}
	return printKey(s, key.Event(c.Source, c.ID))
}

type keySlotCmd struct {
	Job  string  `arg:"" help:"Name of the job."`
	Time instant `arg:"" help:"Time for which the run was scheduled (RFC 3339)."`
}

// Run is called by kong.
func (c *keySlotCmd) Run(s *session) error {
	if c.Job == "" {
		return usageError("<job> is empty: give the name of the job")
	}
	slot := store.Key{Namespace: store.DefaultNamespace, ID: key.Slot(c.Job, c.Time.Time)}
	if err := slot.Validate(); err != nil { // the job is in it as it is
		return usageError("<job>: the slot's key is no valid one: %v", err)
	}
	return printKey(s, slot.ID)
}

type keyAttemptCmd struct {
	Parent string  `arg:"" help:"Id of the key of the purpose, such as the order."`
	N      decimal `arg:"" help:"Which operation it is: what the program keeps with the purpose. It is no count of retries."`
}

// Run is called by kong.
func (c *keyAttemptCmd) Run(s *session) error {
	if c.Parent == "" {
		return usageError("<parent> is empty: give the id of the key of the purpose")
	}
	return printKey(s, key.Attempt(c.Parent, int(c.N)))
}

type keyNewCmd struct{}

// Run is called by kong.
func (*keyNewCmd) Run(s *session) error { return printKey(s, key.New()) }

// printKey prints a key's id, and nothing else.
func printKey(s *session, id string) error {
	if _, err := fmt.Fprintln(s.stdout, id); err != nil {
		return unwritten(err)
	}
	return nil
}

// decimal is a whole number in decimal digits. The parser would take 010 for 8, of which another key comes.
type decimal int

// UnmarshalText implements [encoding.TextUnmarshaler].
func (d *decimal) UnmarshalText(text []byte) error {
	n, err := strconv.Atoi(string(text))
	if err != nil || strconv.Itoa(n) != string(text) {
		return fmt.Errorf("%q is not a whole number in decimal digits, like 2 or 10", text)
	}
	*d = decimal(n)
	return nil
}
