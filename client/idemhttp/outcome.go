package idemhttp

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/internal/step"
	"github.com/idemd/idemd/store"
)

// What an outcome cannot do without is stored under names that no header field has.
const (
	entryStatus   = ":status"
	entryEncoding = ":content-encoding"
)

// transient holds the statuses of 400 to 499 that say nothing of how the same request ends later, also
// as it may have other preconditions then: those are not compared.
var transient = []int{
	http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired, http.StatusRequestTimeout, http.StatusConflict,
	http.StatusPreconditionFailed, http.StatusMisdirectedRequest, http.StatusLocked, http.StatusFailedDependency, http.StatusTooEarly,
	http.StatusPreconditionRequired, http.StatusTooManyRequests,
}

// ending is what a response means for its key. What is not known to be final or to have had no
// effect is unknown. inDoubt says that an earlier attempt may have acted, stepInDoubt that this one may, further on: no
// refusal is final then.
func (p *Policy) ending(r *response, inDoubt, stepInDoubt bool) client.Ending {
	switch {
	case r.why == errStreamed: //nolint:errorlint // a sentinel of this package
		return client.Ending{Why: errStreamed}
	case r.header.Get(HeaderRefused) != "": // a refusal of idemd further on is no outcome: it can change
		return client.Ending{Why: fmt.Errorf("the handler passed on a refusal of idemd further on: %w", answered(r.status))}
	case r.unknown:
		return client.Ending{Why: fmt.Errorf("the handler passed on what is no final answer: %w", answered(r.status))}
	case slices.Contains(p.NoEffect, r.status) && !stepInDoubt:
		return client.Ending{Effect: store.EffectNone}
	case r.status >= 500, r.status >= 400 && (inDoubt || stepInDoubt || slices.Contains(transient, r.status)):
		return client.Ending{Why: answered(r.status)}
	default:
		return client.Ending{Outcome: p.outcome(r), Why: r.why}
	}
}

// answered is why nobody knows what happened, of a response that says so.
func answered(status int) error {
	return fmt.Errorf("the handler answered HTTP %d %s", status, http.StatusText(status))
}

// outcome is what is stored of a response.
func (p *Policy) outcome(r *response) *store.Outcome {
	o := &store.Outcome{Body: r.body, BodyType: r.header.Get("Content-Type"), BodyOmitted: r.passing}
	if !utf8.ValidString(o.BodyType) {
		o.BodyType = "application/octet-stream"
	}
	if o.BodyOmitted {
		o.Body, o.BodyType = nil, o.BodyType[:min(len(o.BodyType), 255)]
	}
	if r.status >= 400 {
		o.Status = statusBytes(r.status)
	}
	o.Header = []store.MetadataEntry{{Name: entryStatus, Value: []byte(strconv.Itoa(r.status))}}
	if encoding := r.own("Content-Encoding"); len(encoding) > 0 {
		o.Header = append(o.Header, store.MetadataEntry{Name: entryEncoding, Value: []byte(strings.Join(encoding, ", "))})
	}
	for _, name := range p.Replay {
		for _, value := range r.own(name) {
			o.Header = append(o.Header, store.MetadataEntry{Name: name, Value: []byte(value)})
		}
	}
	o.Header = o.Header[:min(len(o.Header), store.MaxMetadataEntries)]
	return o
}

// httpCodes are the codes by which an operator sees and says how a request failed.
var httpCodes = []struct {
	status int
	code   codes.Code
}{
	{http.StatusBadRequest, codes.InvalidArgument},
	{http.StatusNotFound, codes.NotFound},
	{http.StatusConflict, codes.AlreadyExists},
	{http.StatusForbidden, codes.PermissionDenied},
	{http.StatusUnprocessableEntity, codes.FailedPrecondition},
	{http.StatusRequestedRangeNotSatisfiable, codes.OutOfRange},
}

// statusBytes is what the record of a failed request shows.
func statusBytes(status int) []byte {
	code := codes.FailedPrecondition
	for _, row := range httpCodes {
		if row.status == status {
			code = row.code
		}
	}
	text := fmt.Sprintf("HTTP %d %s", status, http.StatusText(status))
	b, _ := proto.Marshal(&rpcstatus.Status{Code: int32(code), Message: text}) // cannot fail
	return b
}

// replay gives a repeat what the first request got.
func (h *handler) replay(w http.ResponseWriter, p client.Passage, key string) {
	o := p.Replay.Outcome
	w.Header().Set(HeaderReplayed, "true")
	status, known := storedStatus(o)
	if !p.Recorded {
		w.Header().Set(HeaderNotRecorded, "true")
	} else if status >= 400 {
		w.Header().Set(HeaderEnd, step.Mark(step.Completed, status, key))
	}
	switch {
	case o.BodyOmitted:
		detail := "it was carried out, but its response was too large to store; find it out by your own reference"
		if known {
			detail = fmt.Sprintf("it was carried out and answered with status %d, but its response was too large to store; find it out by your own reference", status)
		}
		writeProblem(w, h.guard.options.docs, store.Refuse(store.ErrOutcomeOmitted, detail))
	case !known && len(o.Status) > 0 && len(o.Body) == 0:
		h.replaySettled(w, status, o)
	case !known && len(o.Body) > 0 && !strings.Contains(o.BodyType, "/"):
		writeProblem(w, h.guard.options.docs, store.Refuse(store.ErrOutcomeOmitted, fmt.Sprintf("what came of it was stored as %q, which is no media type", o.BodyType)))
	default:
		replayHeader(w.Header(), o)
		w.WriteHeader(status)
		_, _ = w.Write(o.Body) // it fails if the client has gone, or the status has no body
	}
}

func replayHeader(header http.Header, o *store.Outcome) {
	replaced := map[string]bool{} // what is outside the guard may have set it already
	for _, entry := range o.Header {
		name := entry.Name
		switch {
		case name == entryEncoding:
			name = "Content-Encoding"
		case strings.HasPrefix(name, ":"):
			continue
		}
		if !replaced[name] {
			header.Del(name)
			replaced[name] = true
		}
		header.Add(name, string(entry.Value))
	}
	header["Content-Type"] = nil // net/http makes up none, as the handler had not
	if o.BodyType != "" {
		header.Set("Content-Type", o.BodyType)
	}
}

// storedStatus is the status of a stored response. It is not known of what an operator settled.
func storedStatus(o *store.Outcome) (status int, known bool) {
	for _, entry := range o.Header {
		if entry.Name == entryStatus {
			status, err := strconv.Atoi(string(entry.Value))
			if err == nil && status >= 200 && status <= 999 {
				return status, true
			}
		}
	}
	if len(o.Status) == 0 {
		return http.StatusOK, false
	}
	code := codeOf(o)
	for _, row := range httpCodes {
		if row.code == code {
			return row.status, false
		}
	}
	return http.StatusInternalServerError, false
}

func codeOf(o *store.Outcome) codes.Code { return codes.Code(statusIn(o).GetCode()) }

func statusIn(o *store.Outcome) *rpcstatus.Status {
	st := &rpcstatus.Status{}
	if proto.Unmarshal(o.Status, st) != nil {
		return &rpcstatus.Status{Code: int32(codes.Unknown)}
	}
	return st
}

// replaySettled tells what an operator has settled a key with.
func (h *handler) replaySettled(w http.ResponseWriter, status int, o *store.Outcome) {
	problem{
		Type: h.guard.options.docs, Title: "An operator has settled how this request ended", Status: status,
		Detail: statusIn(o).GetMessage(),
	}.write(w)
}
