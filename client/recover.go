package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/idemd/idemd/store/storepb"
)

// RecoverHook is made by [RecoverCall]. The zero RecoverHook is none.
type RecoverHook struct {
	request, response reflect.Type
	find              func(ctx context.Context, request any, a *Attempt) (response any, found bool, err error)
	keys              providerKeys
}

// RecoverCall has find asked, whenever an earlier attempt may have acted, before the
// handler runs; which it does only if nothing was found. find looks the effect up by the
// caller's own reference. An error from it leaves what happened unknown: the call is refused
// with UNAVAILABLE, and the event [EventUnknown] carries the error; but see
// [RecoverHook.ProviderKeys].
//
// Request and Response are the generated types of the method; [Guard.Verify] checks that.
func RecoverCall[Request, Response proto.Message](find func(ctx context.Context, request Request, a *Attempt) (response Response, found bool, err error)) RecoverHook {
	if find == nil {
		return RecoverHook{}
	}
	return RecoverHook{
		request: reflect.TypeFor[Request](), response: reflect.TypeFor[Response](),
		find: func(ctx context.Context, request any, a *Attempt) (any, bool, error) {
			req, ok := request.(Request)
			if !ok {
				return nil, false, fmt.Errorf("the recover hook is for a %T, the request is a %T", req, request)
			}
			return find(ctx, req, a)
		},
	}
}

// isSet reports whether there is a hook.
func (h *RecoverHook) isSet() bool { return h.find != nil || h.keys.given }

// ask finds out what an earlier attempt did. It is in doubt if that is not known, and an error
// if nobody may act then.
func (h *RecoverHook) ask(ctx context.Context, request any, a *Attempt) (response any, done, inDoubt bool, err error) {
	if h.find != nil {
		if response, done, err = h.find(ctx, request, a); err == nil {
			return response, done, false, nil
		}
		err = fmt.Errorf("the recover hook could not find out whether an earlier attempt acted: %w", err)
	}
	return nil, false, true, a.mayRepeat(ctx, h.keys, err)
}

// refusal is what a caller is told of an error of ask. What somebody further on says our
// callers need not know; the event tells.
func (h *RecoverHook) refusal(err error) error {
	if h.find != nil {
		return errNotFoundOut
	}
	return storepb.ToStatus(err).Err()
}

// check returns why the hook cannot be that of a method.
func (h *RecoverHook) check(m protoreflect.MethodDescriptor) error {
	if !h.isSet() {
		return nil
	}
	if h.find == nil {
		return h.keys.check()
	}
	return cmp.Or(h.keys.check(), checkHookType("request", h.request, m.Input()), checkHookType("response", h.response, m.Output()))
}

func checkHookType(what string, got reflect.Type, of protoreflect.MessageDescriptor) error {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(of.FullName())
	if err != nil {
		return fmt.Errorf("no generated code for its %s %s is linked in", what, of.FullName())
	}
	if want := reflect.TypeOf(kind.Zero().Interface()); got != want {
		return fmt.Errorf("its recover hook has the %s type %v; it must be %v", what, got, want)
	}
	return nil
}

// addRecover adds the hook of [RecoverMethod] to the policy.
func (m *method) addRecover(o *guardOptions) error {
	hook, given := o.recovers[m.name]
	switch {
	case !given:
		return nil
	case !m.guarded:
		return errors.New("RecoverMethod gives it a recover hook, and nothing declares it guarded")
	case m.policy.Recover.isSet():
		return errors.New("it has two recover hooks, of RecoverMethod and of its Policy; take one of them away")
	case !hook.isSet():
		return errors.New("RecoverMethod was given no hook; make one with RecoverCall")
	}
	m.policy.Recover = hook
	return nil
}
