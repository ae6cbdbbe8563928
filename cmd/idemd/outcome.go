package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"

	rpccode "google.golang.org/genproto/googleapis/rpc/code"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// outcomeFlags say what an attempt ended with.
type outcomeFlags struct {
	Outcome *string `placeholder:"TEXT|@FILE|-" help:"Body of the outcome: the text, a file's bytes, or standard input's (-)."`
	Type    string  `help:"Type of the body (text/plain for TEXT, application/octet-stream else)."`
	Code    *code   `placeholder:"CODE" help:"gRPC status code of the outcome, by name or number (OK)."`
	Message string  `help:"Message of a status that is not OK."`

	BodyOmitted bool `help:"There is a body, and it is too large to store: repeats are told so."`
}

// given reports whether the flags say what happened.
func (f *outcomeFlags) given() bool { return f.Outcome != nil || f.Code != nil || f.BodyOmitted }

func (f *outcomeFlags) hasBody() bool { return f.Outcome != nil && *f.Outcome != "" }

// proto reads the body and makes the outcome.
func (f *outcomeFlags) proto(stdin io.Reader) (*idemdv1.Outcome, error) {
	if f.BodyOmitted && f.hasBody() {
		return nil, usageError("--body-omitted says that the body is not stored: leave --outcome out")
	}
	status, err := f.status()
	if err != nil {
		return nil, err
	}
	body, kind, err := f.body(stdin)
	if err != nil {
		return nil, err
	}
	if f.Type != "" {
		kind = f.Type
	}
	outcome := &idemdv1.Outcome{Status: status, Body: body, BodyType: kind, BodyOmitted: f.BodyOmitted}
	if size := storepb.OutcomeFromProto(outcome).Size(); size > store.MaxOutcomeBytes {
		return nil, tooLarge(fmt.Sprintf("with its status and type it has %d bytes,", size))
	}
	return outcome, nil
}

func (f *outcomeFlags) status() ([]byte, error) {
	if f.Code == nil || codes.Code(*f.Code) == codes.OK {
		if f.Message != "" {
			return nil, usageError("--message goes with a --code that is not OK")
		}
		return nil, nil
	}
	return proto.Marshal(&spb.Status{Code: int32(*f.Code), Message: f.Message})
}

// body returns the bytes and the type they have by default.
func (f *outcomeFlags) body(stdin io.Reader) ([]byte, string, error) {
	const binary = "application/octet-stream"
	if !f.hasBody() {
		return nil, "", nil
	}
	switch path, isFile := strings.CutPrefix(*f.Outcome, "@"); {
	case *f.Outcome == "-":
		body, err := readBody(stdin, "standard input")
		return body, binary, err
	case isFile && path == "":
		return nil, "", usageError("--outcome @: name a file after the @, or give - for standard input")
	case isFile:
		file, err := os.Open(path)
		if err != nil {
			return nil, "", usageError("--outcome: %v", err)
		}
		defer file.Close()
		body, err := readBody(file, path)
		return body, binary, err
	default:
		return []byte(*f.Outcome), "text/plain", nil
	}
}

// readBody reads no more than could be stored.
func readBody(r io.Reader, name string) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r, store.MaxOutcomeBytes+1))
	var pathError *fs.PathError
	switch {
	case errors.As(err, &pathError):
		return nil, usageError("--outcome: %v", err)
	case err != nil:
		return nil, usageError("--outcome: %s: %v", name, err)
	case len(body) > store.MaxOutcomeBytes:
		return nil, tooLarge(name + " is")
	}
	return body, nil
}

// tooLarge is about an outcome that no namespace takes.
func tooLarge(what string) error {
	return usageError("--outcome: %s larger than the %d bytes that an outcome may have: store it elsewhere and a reference to it here, or complete with --body-omitted", what, store.MaxOutcomeBytes)
}

// code is a gRPC status code.
type code codes.Code

// UnmarshalText implements [encoding.TextUnmarshaler]: a name like NOT_FOUND or a number.
func (c *code) UnmarshalText(text []byte) error {
	number, err := strconv.ParseUint(string(text), 10, 8)
	if err == nil && number <= uint64(codes.Unauthenticated) {
		*c = code(number)
		return nil
	}
	var named codes.Code
	if err := named.UnmarshalJSON([]byte(strconv.Quote(strings.ToUpper(string(text))))); err != nil {
		return fmt.Errorf("%q is not a gRPC status code: give a name like NOT_FOUND, or a number from 0 to %d", text, codes.Unauthenticated)
	}
	*c = code(named)
	return nil
}

// codeName is the name of a status code as it is given to --code, or its number.
func codeName(c codes.Code) string { return rpccode.Code(c).String() }

// statusText shows a serialized google.rpc.Status.
func statusText(serialized []byte) string {
	var st spb.Status
	if err := proto.Unmarshal(serialized, &st); err != nil {
		return fmt.Sprintf("a status that cannot be read (%d bytes)", len(serialized))
	}
	text := codeName(codes.Code(st.GetCode()))
	if st.GetMessage() != "" {
		text += ": " + shown(st.GetMessage())
	}
	return text
}
