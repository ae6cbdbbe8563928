package client

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/idemd/idemd/client/fingerprint"
	"github.com/idemd/idemd/store"
)

// The types of bodies that are not protobuf messages; of those it is the message's full name.
const (
	typeBytes = "application/octet-stream"
	typeText  = "text/plain; charset=utf-8"
	typeJSON  = "application/json"
)

// checkValueType refuses types whose values cannot be read back.
func checkValueType[T any]() error {
	t := reflect.TypeFor[T]()
	_, dynamic := any(*new(T)).(*dynamicpb.Message)
	unreadable := dynamic || t.Kind() == reflect.Interface || t.Kind() == reflect.Func || t.Kind() == reflect.Chan
	if !unreadable {
		return nil
	}
	return store.Refuse(store.ErrInvalidArgument,
		fmt.Sprintf("Do cannot read a value back as %v, which cannot be stored or does not say what is in it; let its function return a generated message, []byte, string or struct", t))
}

// encode makes an outcome of a value. One that cannot be encoded is stored without a body:
// that it was done is known all the same.
func encode(value any) *store.Outcome {
	var body []byte
	var err error
	bodyType := bodyTypeOf(value)
	switch v := value.(type) {
	case proto.Message:
		body, err = proto.Marshal(v)
	case []byte:
		body = bytes.Clone(v) // it may be recorded after the caller got v, and changed it
	case string:
		body = []byte(v)
	default:
		body, err = json.Marshal(v)
	}
	if err != nil {
		return withoutBody(&store.Outcome{BodyType: bodyType})
	}
	return &store.Outcome{Body: body, BodyType: bodyType}
}

func bodyTypeOf(value any) string {
	switch v := value.(type) {
	case proto.Message:
		return string(v.ProtoReflect().Descriptor().FullName())
	case []byte:
		return typeBytes
	case string:
		return typeText
	default:
		return typeJSON
	}
}

// decode makes a value of a stored outcome, or the error that it holds.
func decode[T any](o *store.Outcome) (value T, err error) {
	failure, err := failureOf(o)
	if err != nil || failure != nil {
		return value, cmp.Or(err, failure)
	}
	if o.BodyOmitted {
		return value, outcomeOmitted()
	}
	switch p := any(&value).(type) {
	case *[]byte:
		*p, err = bytes.Clone(o.Body), checkType(o, typeBytes)
	case *string:
		*p, err = string(o.Body), checkType(o, typeText)
	default:
		err = decodeInto(&value, o)
	}
	if err != nil {
		value = *new(T)
	}
	return value, err
}

func decodeInto[T any](value *T, o *store.Outcome) error {
	m, ok := any(*value).(proto.Message)
	if !ok {
		if err := checkType(o, typeJSON); err != nil {
			return err
		}
		return unreadable(json.Unmarshal(o.Body, value))
	}
	if err := checkType(o, bodyTypeOf(m)); err != nil {
		return err
	}
	fresh := m.ProtoReflect().Type().New().Interface()
	*value = fresh.(T)
	return unreadable(proto.Unmarshal(o.Body, fresh))
}

func outcomeOmitted() error {
	return store.Refuse(store.ErrOutcomeOmitted, "it was carried out, but what came of it could not be stored: it was too large, or could not be encoded; find it out by your own reference")
}

func checkType(o *store.Outcome, want string) error {
	if o.BodyType == want {
		return nil
	}
	return store.Refuse(store.ErrOutcomeOmitted, fmt.Sprintf("it was carried out, and what came of it was stored as %q; this caller reads %q", o.BodyType, want))
}

func unreadable(err error) error {
	if err == nil {
		return nil
	}
	return &store.Error{Sentinel: store.ErrOutcomeOmitted, Detail: "it was carried out, but the stored outcome cannot be read as what this caller asks for", Cause: err}
}

// fingerprintOf is the fingerprint of what an intent asks for.
func fingerprintOf(request any) (store.Fingerprint, error) {
	switch r := request.(type) {
	case nil:
		return store.Fingerprint{}, nil
	case store.Fingerprint:
		return r, nil
	case []byte:
		return fingerprint.Bytes(r), nil
	case string:
		return fingerprint.Bytes([]byte(r)), nil
	case proto.Message:
		return fingerprint.Message(r)
	default:
		return store.Fingerprint{}, store.Refuse(store.ErrInvalidArgument,
			fmt.Sprintf("no fingerprint can be made of a %T; pass a proto.Message, []byte, string, store.Fingerprint or nil", request))
	}
}
