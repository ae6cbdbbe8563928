package region

import (
	"fmt"
	"strings"
	"time"

	"github.com/idemd/idemd/store"
)

// howToSettle says how regions are brought to keep a namespace alike.
const howToSettle = "set them again with idemd namespace set, which writes all of them to every region"

// sameSettings reports whether two regions keep the namespace alike. A recovery floor is a
// region's own, and is carried over by a move.
func sameSettings(a, b store.Namespace) bool {
	a.RecoveryFloor, b.RecoveryFloor = time.Time{}, time.Time{}
	return a.SameSettings(b)
}

// differences says what two regions keep of a namespace differently; empty if it is nothing.
func differences(here string, a store.Namespace, there string, b store.Namespace) string {
	if sameSettings(a, b) {
		return ""
	}
	var differ []string
	compare := func(setting string, x, y any) {
		if x != y {
			differ = append(differ, fmt.Sprintf("%s is %v in %s and %v in %s", setting, x, here, y, there))
		}
	}
	compare("tier", tierWord(a.Tier), tierWord(b.Tier))
	compare("retention", a.Retention, b.Retention)
	compare("lapse policy", policyWord(a.LapsePolicy), policyWord(b.LapsePolicy))
	compare("default lease", a.Lease, b.Lease)
	compare("max lease", a.MaxLease, b.MaxLease)
	compare("max attempt", a.MaxAttempt, b.MaxAttempt)
	compare("max outcome bytes", a.MaxOutcomeBytes, b.MaxOutcomeBytes)
	compare("entity rule", entityWord(a.Entity), entityWord(b.Entity))
	return strings.Join(differ, ", ")
}

func tierWord(t store.Tier) string {
	return map[store.Tier]string{store.TierHour: "hour", store.TierDay: "day", store.TierWeek: "week", store.TierMonth: "month"}[t]
}

func policyWord(p store.LapsePolicy) string {
	return map[store.LapsePolicy]string{store.Takeover: "takeover", store.Hold: "hold"}[p]
}

func entityWord(r store.EntityRule) string {
	return map[store.EntityRule]string{store.EntityOptional: "optional", store.EntityRequired: "required", store.EntityForbidden: "forbidden"}[r]
}
