package region

import (
	"context"
	"fmt"
	"maps"
	"math"
	"time"

	"github.com/idemd/idemd/store"
)

const (
	forever = time.Duration(math.MaxInt64)
	// pollHeld is how often it is asked how many attempts hold a lease, which may read every
	// record that is in progress.
	pollHeld = 500 * time.Millisecond
)

// spreadInForce gives everybody involved the current placement, and says from when on the old
// homes' stores act by it, each by its own clock.
func (v *move) spreadInForce(ctx context.Context) (map[string]store.Placed, error) {
	placed, err := v.placeAll(ctx, v.sources())
	if err != nil {
		return nil, err
	}
	there, err := v.placeAt(ctx, v.To, v.current)
	if err != nil {
		return nil, err
	}
	all := maps.Clone(placed)
	all[v.To] = there
	return placed, v.alike(all) // from here on no store changes them
}

// awaitHeld waits until the placement is in force in the old homes and no attempt holds a lease
// there, for as long as patience lasts by their clocks.
func (v *move) awaitHeld(ctx context.Context, inForce map[string]store.Placed, patience time.Duration) error {
	told := -1
	for {
		count, over := 0, true
		for source, placed := range inForce {
			held, err := v.held(ctx, source)
			if err != nil {
				return err
			}
			count += held.Count
			over = over && !held.Now.Before(placed.InForce)
			if held.Now.Sub(placed.Now) >= patience {
				return nil
			}
		}
		if over && count == 0 {
			return nil
		}
		if count > 0 && count != told {
			told = count
			if err := v.tellOf(Step{Name: "waiting", Detail: "attempts hold a lease", Count: int64(count)}); err != nil {
				return err
			}
		}
		if err := v.sleep(ctx, pollHeld); err != nil {
			return err
		}
	}
}

// held asks a region, and notes its clock.
func (v *move) held(ctx context.Context, region string) (Held, error) {
	party, err := v.party(region)
	if err != nil {
		return Held{}, err
	}
	held, err := party.Held(ctx, v.Namespace, v.current.Epoch)
	if err == nil && held.Now.After(v.last) {
		v.last = held.Now
	}
	return held, err
}

// awaitClock waits until the clock here is past everything that the old homes have done: a
// fence is no lower than the clock, and so every fence from here on is above theirs. It says so if that
// takes long, and does not wait for a clock that was set back.
func (v *move) awaitClock(ctx context.Context) error {
	told := false
	for {
		here, err := v.placeAt(ctx, v.Here, v.current)
		if err != nil {
			return err
		}
		behind := v.last.Sub(here.Now)
		if behind < 0 {
			return nil
		}
		if behind > maxBehind {
			return store.Refuse(store.ErrInvalidArgument, fmt.Sprintf(
				"the clock of region %q is %v behind those of the regions that its keys come from, and namespace %q stays sealed until it is past these; mend the clock, and run the move again",
				v.Here, behind.Round(time.Second), v.Namespace))
		}
		if behind >= time.Second && !told {
			told = true
			if err := v.reached("sealed", fmt.Sprintf("all is copied; the clock of region %q is %v behind, and that is waited for", v.Here, behind.Round(time.Second))); err != nil {
				return err
			}
		}
		if err := v.sleep(ctx, behind+time.Microsecond); err != nil {
			return err
		}
	}
}

// awaitInForce waits for as long as it takes until the stores act by what they were given.
func (v *move) awaitInForce(ctx context.Context, placed map[string]store.Placed) error {
	var longest time.Duration
	for _, p := range placed {
		longest = max(longest, p.InForce.Sub(p.Now))
	}
	if longest == 0 {
		return nil
	}
	return v.sleep(ctx, longest)
}

func (v *move) sleep(ctx context.Context, d time.Duration) error {
	if v.Sleep != nil {
		return v.Sleep(ctx, d)
	}
	return sleep(ctx, d)
}
