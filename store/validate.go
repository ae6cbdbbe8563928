package store

import (
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"
)

// Validate checks what can be checked without the namespace. Every backend calls it
// before any other work.
func (r *ClaimRequest) Validate() error {
	return firstError(
		r.Key.Validate(),
		validateAttemptID(r.AttemptID),
		r.Fingerprint.validate(),
		validateLease(r.Lease),
		validateRange("wait", r.Wait, 0, MaxWait),
		validateIntentTime(r.IntentTime),
	)
}

// Validate checks what can be checked without the namespace.
func (r *RenewRequest) Validate() error {
	return firstError(
		r.Key.Validate(),
		validateAttemptID(r.AttemptID),
		validateFence(r.Fence),
		validateLease(r.Lease),
	)
}

// Validate checks what can be checked without the namespace.
func (r *CompleteRequest) Validate() error {
	return firstError(
		r.Key.Validate(),
		validateAttemptID(r.AttemptID),
		validateFence(r.Fence),
		validateOutcome(r.Outcome),
	)
}

// Validate checks what can be checked without the namespace.
func (r *ReleaseRequest) Validate() error {
	var effect error
	if r.Effect != EffectNone && r.Effect != EffectUnknown {
		effect = invalid("effect must be given: NONE (nothing happened) or UNKNOWN (it may have happened)")
	}
	return firstError(
		r.Key.Validate(),
		validateAttemptID(r.AttemptID),
		validateFence(r.Fence),
		effect,
	)
}

// Validate checks what can be checked without the namespace.
func (r *LookupRequest) Validate() error {
	return firstError(r.Key.Validate(), r.Fingerprint.validate())
}

// Validate checks what can be checked without the namespace.
func (r *ListRequest) Validate() error {
	var state, size error
	if r.Filter.State > StateReleased {
		state = invalid("state is not one of IN_PROGRESS, COMPLETED and RELEASED")
	}
	if r.PageSize < 0 || r.PageSize > MaxPageSize {
		size = invalid("page size %d is outside 0 to %d", r.PageSize, MaxPageSize)
	}
	return firstError(
		ValidateNamespaceName(r.Namespace),
		state,
		validateText("scope", r.Filter.Scope, MaxScopeBytes),
		validateText("entity", r.Filter.Entity, MaxEntityBytes),
		size,
	)
}

// Validate checks what can be checked without the namespace.
func (r *ResolveRequest) Validate() error {
	var outcome error
	if r.Outcome != nil {
		outcome = validateOutcome(r.Outcome)
	}
	return firstError(r.Key.Validate(), outcome, validateForced(r.Actor, r.Reason), validateExpected(r.Fence, r.AnyFence))
}

// Validate checks what can be checked without the namespace.
func (r *ForceReleaseRequest) Validate() error {
	return firstError(r.Key.Validate(), validateForced(r.Actor, r.Reason), validateExpected(r.Fence, r.AnyFence))
}

// Validate checks the key's limits.
func (k *Key) Validate() error {
	if k.ID == "" {
		return Refuse(ErrKeyRequired, "id is empty; make one id per intent and send it with every repeat")
	}
	return firstError(
		ValidateNamespaceName(k.Namespace),
		validateText("id", k.ID, MaxIDBytes),
		validateText("scope", k.Scope, MaxScopeBytes),
		validateText("entity", k.Entity, MaxEntityBytes),
	)
}

// Validate checks the settings of a namespace whose defaults are filled in.
func (n *Namespace) Validate() error {
	if n.Tier < TierHour || n.Tier > TierMonth {
		return invalid("tier is not one of HOUR, DAY, WEEK and MONTH")
	}
	var policy, entity, outcome error
	if n.LapsePolicy != Takeover && n.LapsePolicy != Hold {
		policy = invalid("lapse policy is not one of TAKEOVER and HOLD")
	}
	if n.Entity > EntityForbidden {
		entity = invalid("entity rule is not one of OPTIONAL, REQUIRED and FORBIDDEN")
	}
	if n.MaxOutcomeBytes < MinOutcomeBytes || n.MaxOutcomeBytes > MaxOutcomeBytes {
		outcome = invalid("max outcome bytes %d is outside %d to %d", n.MaxOutcomeBytes, MinOutcomeBytes, MaxOutcomeBytes)
	}
	return firstError(
		ValidateNamespaceName(n.Name),
		n.validateRetention(),
		validateRange("max attempt", n.MaxAttempt, MinLease, n.Tier.MaxAttempt()),
		validateRange("max lease", n.MaxLease, MinLease, min(MaxLease, n.MaxAttempt)),
		validateRange("lease", n.Lease, MinLease, n.MaxLease),
		policy, entity, outcome,
	)
}

// validateRetention tells of the tier only where another one would have room: nobody need know of it who
// never chose one.
func (n *Namespace) validateRetention() error {
	most := TierMonth.MaxRetention()
	if n.Retention > n.Tier.MaxRetention() && n.Retention <= most {
		return invalid("retention %s is more than the %s of its tier, which stays as the namespace was created: create another with a longer tier, up to %s",
			SpanText(n.Retention), SpanText(n.Tier.MaxRetention()), SpanText(most))
	}
	return validateRange("retention", n.Retention, MinRetention, most)
}

// checkClaim checks a Claim against the namespace's own limits. Callers take their intent
// times from wall clocks; the store's clock follows a step of its own only slowly.
func (n *Namespace) checkClaim(req ClaimRequest, now, wall time.Time) error {
	present := later(now, earlier(wall, now.Add(MaxWallAhead)))
	if req.IntentTime.After(present.Add(n.Skew())) {
		return invalid("intent time %s is in the future; it is %s here and %v of skew are allowed",
			req.IntentTime.UTC().Format(time.RFC3339Nano), present.Format(time.RFC3339Nano), n.Skew())
	}
	return firstError(n.checkEntity(req.Key), n.checkLease(req.Lease))
}

func (n *Namespace) checkEntity(key Key) error {
	switch {
	case n.Entity == EntityRequired && key.Entity == "":
		return invalid("namespace %q requires an entity in every key", n.Name)
	case n.Entity == EntityForbidden && key.Entity != "":
		return invalid("namespace %q does not allow an entity in its keys", n.Name)
	}
	return nil
}

func (n *Namespace) checkLease(lease time.Duration) error {
	if lease > n.MaxLease {
		return invalid("lease %s is longer than the %s that namespace %q allows", SpanText(lease), SpanText(n.MaxLease), n.Name)
	}
	return nil
}

func (n *Namespace) checkOutcome(outcome *Outcome) error {
	if size := outcome.Size(); size > n.MaxOutcomeBytes {
		return outcomeTooLarge(size, n.MaxOutcomeBytes)
	}
	return nil
}

// leaseOrDefault is the lease that a request gets, in whole microseconds.
func (n *Namespace) leaseOrDefault(lease time.Duration) time.Duration {
	if lease == 0 {
		return n.Lease
	}
	return lease.Truncate(time.Microsecond)
}

// ValidateNamespaceName checks a name that a namespace has or may get.
func ValidateNamespaceName(name string) error {
	const allowed = "namespace must be 1 to 63 of a-z, 0-9 and '-', not starting with '-'"
	if len(name) < 1 || len(name) > 63 {
		return invalid(allowed+"; it has %d bytes", len(name))
	}
	for i, c := range name {
		if lower, digit, dash := c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '-' && i > 0; !lower && !digit && !dash {
			return invalid(allowed+"; it has %+q at byte %d", c, i+1)
		}
	}
	return nil
}

// validateText checks the limit in bytes first: a long text gets the same answer
// whatever it holds.
func validateText(field, value string, limit int) error {
	if len(value) > limit {
		return invalid("%s has %d bytes, at most %d are allowed", field, len(value), limit)
	}
	for i := 0; i < len(value); i++ {
		if c := value[i]; c >= utf8.RuneSelf {
			return validateUnicode(field, value)
		} else if c < 0x20 || c == 0x7f {
			return invalid("%s has a control character at byte %d; send printable text", field, i)
		}
	}
	return nil
}

func validateUnicode(field, value string) error {
	if !utf8.ValidString(value) {
		return invalid("%s is not valid UTF-8", field)
	}
	for i, r := range value {
		if unicode.IsControl(r) {
			return invalid("%s has a control character at byte %d; send printable text", field, i)
		}
	}
	return nil
}

func validateAttemptID(id string) error {
	if len(id) < 1 || len(id) > MaxAttemptIDBytes {
		return invalid("attempt id has %d bytes, 1 to %d are allowed; draw 16 random bytes per execution", len(id), MaxAttemptIDBytes)
	}
	return nil
}

func (f Fingerprint) validate() error {
	switch {
	case len(f.Digest) > MaxFingerprintBytes:
		return invalid("fingerprint has %d bytes, at most %d are allowed; send a digest of the request", len(f.Digest), MaxFingerprintBytes)
	case f == UnknownFingerprint:
		return invalid("this fingerprint says that it is not known; send another, or none")
	case f.Digest == "" && f.Version != 0:
		return invalid("an empty fingerprint has no version, but version %d was sent", f.Version)
	}
	return nil
}

func validateFence(fence int64) error {
	if fence <= 0 {
		return invalid("fence %d is not one that a grant gave", fence)
	}
	return nil
}

// validateExpected checks which record an operator means.
func validateExpected(fence int64, any bool) error {
	switch {
	case any && fence != 0:
		return invalid("fence %d is given, and also that any fence will do; give one of them", fence)
	case !any && fence <= 0:
		return invalid("fence %d is not that of a record; give the one that inspecting the key shows, or say that any fence will do", fence)
	}
	return nil
}

func validateLease(lease time.Duration) error {
	if lease == 0 {
		return nil
	}
	return validateRange("lease", lease, MinLease, MaxLease)
}

// validateIntentTime keeps arithmetic on intent times far from overflow.
func validateIntentTime(t time.Time) error {
	if !t.IsZero() && (t.Year() < 1970 || t.Year() > 9999) {
		return invalid("intent time is not between the years 1970 and 9999")
	}
	return nil
}

func validateRange(field string, d, lo, hi time.Duration) error {
	if d < lo || d > hi {
		return invalid("%s %s is outside %s to %s", field, SpanText(d), SpanText(lo), SpanText(hi))
	}
	return nil
}

func validateOutcome(o *Outcome) error {
	if o == nil {
		return invalid("outcome is missing; an empty outcome must be sent as such")
	}
	if size := o.Size(); size > MaxOutcomeBytes {
		return outcomeTooLarge(size, MaxOutcomeBytes)
	}
	if o.BodyOmitted && len(o.Body) > 0 {
		return invalid("outcome says that its body is omitted, but carries %d bytes of it", len(o.Body))
	}
	if !utf8.ValidString(o.BodyType) {
		return invalid("outcome body type is not valid UTF-8")
	}
	return firstError(validateMetadata("header", o.Header), validateMetadata("trailer", o.Trailer))
}

func validateMetadata(kind string, list []MetadataEntry) error {
	if len(list) > MaxMetadataEntries {
		return invalid("outcome has %d %ss, at most %d are allowed", len(list), kind, MaxMetadataEntries)
	}
	for i, e := range list {
		if e.Name == "" || !utf8.ValidString(e.Name) {
			return invalid("outcome %s %d has no name in valid UTF-8", kind, i+1)
		}
	}
	return nil
}

func outcomeTooLarge(size, limit int) error {
	return Refuse(ErrOutcomeTooLarge, fmt.Sprintf(
		"it has %d bytes, at most %d are allowed; complete with the body omitted, or store it elsewhere and its address here",
		size, limit))
}

func validateForced(actor, reason string) error {
	if reason == "" {
		return invalid("a reason is required; it is kept with the event")
	}
	return firstError(validateText("actor", actor, MaxActorBytes), validateText("reason", reason, MaxReasonBytes))
}

func invalid(format string, args ...any) error {
	return Refuse(ErrInvalidArgument, fmt.Sprintf(format, args...))
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
