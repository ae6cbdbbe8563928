// Package fingerprint makes the fingerprint of a request: the digest by which idemd tells
// a repeat from another request that was sent under the same key by mistake.
//
// [Message] and [Digester] are for protobuf, [Bytes] is for all else. For a request that
// is already text or JSON, make the bytes those that a repeat sends again.
//
// This page is exact, so that a program in another language makes the same fingerprints.
// testdata holds vectors, and the .proto files of their messages.
//
// # What is hashed
//
// The digest of a message is the SHA-256 of the text "idemd.fingerprint.v1" and the value
// of the message. Below, N(x) is x in 8 bytes, big-endian, negative numbers in two's
// complement, and quotes stand for one byte of ASCII:
//
//	integer  'i' N(value)           all integers of any width, bool (0 or 1), enum (its number)
//	float    'f' N(bits)            float and double, as the bits of a double; each NaN as 7ff8000000000000
//	bytes    's' N(length) bytes    string (in UTF-8) and bytes
//	message  'm' field… N(0)        each field is N(number) and its value, in ascending order of number
//	list     'l' N(count) value…    in the list's order
//	map      'p' N(count) entry…    each entry is the value of the key and the value of the value,
//	                                ordered by the bytes of the key's value
//	Any      'a' N(length) name     then the value of the message that is inside
//
// The fields of a message are those that are present. One with presence (`optional`,
// in a oneof, a message, proto2) is present if it was set, be it to zero or to its default;
// one without is present if it is not zero; lists and maps are if they are not empty.
// Negative zero is not zero. Extensions that the program knows are fields like others,
// and a group is a message. The type's own name is not hashed: which operation is asked
// for is the scope of the key.
//
// A google.protobuf.Any is opened, as the same message may be packed into other bytes:
// name is what follows the last slash of type_url. With neither a type nor content there
// is nothing after the name. It is not opened if it lies in 16 others.
//
// # What is not hashed, and the version
//
// Some things are left out, each named by its path from the root: a step is a field's
// number, or under an Any the name of the type inside. Indexes of lists and keys of maps
// are no steps, nor are the fields of a map's entry: a path goes from the map to the
// fields of its values. Left out are
//
//   - excluded fields, whether or not they are present (what is in them is not looked at);
//   - unknown fields: those that protobuf keeps as unknown, because they are not in the
//     message's descriptor, or there with another wire type;
//   - under an Any, what is inside if it is not understood: the type is not known, or the
//     content is not of this type, or it lies too deep.
//
// A path that leads through another one of the set adds nothing and is dropped from it.
// Before that, the paths of what is not understood are counted, as the steps of a tree: one
// that several paths begin with is counted once. If there are more than 1000, the set is
// the one path of no steps, and nothing of the message is hashed. No request of good faith
// is like this, and without a bound one could be made that costs seconds.
//
// If the set is empty, the version is 1. If not, everything at one of its paths is left
// out, also where it was understood in another element of a list, and the version says
// what the set was: the highest bit, and in the other 31 those of the first four bytes
// (big-endian) of the SHA-256 of the text "idemd.fingerprint.paths.v1", N(count of paths),
// and the paths ordered by their bytes. A path is N(count of steps) and the steps, a step
// is 'n' N(number) or 't' N(length) name.
//
// # Why
//
// While a service is rolled out, an old and a new program see the same request, one sent
// again by a client that knows nothing of it. The new one knows a field that to the old
// one is unknown. To hash the bytes of an unknown field is no way out: a map in it may
// come in another order the next time, a repeat would be refused, and somebody would make
// a new key and pay twice. To hash only what is understood, without saying so, is none
// either: the two programs' digests of one request would differ.
//
// So a digest is a function of two things: the request, and the set of paths that were
// left out of it. Two programs that left out the same paths hashed the same part of the
// request, so their digests are equal or the requests differ. If they left out others,
// their versions differ, and [store.Fingerprint.Compare] says that the two cannot be
// compared, which is never a mismatch, but counted. (Two sets have one version by chance
// once in 2³¹.) The same holds for excluded fields, whose list may change as well. Most
// requests have nothing unknown and are of version 1, whatever program saw them: what a
// rollout costs is the comparison of those requests that use what is new.
//
// # Where this ends
//
//   - Two requests that differ only in what a program does not understand are one to it.
//     It cannot act on the difference either, unless it passes the request on.
//   - Two programs may each understand a field, and differently: it lost or won presence
//     (`optional`) and is set to zero, it became narrower than its value, a singular field
//     was made a list. Such a change of the .proto can look like another request while both
//     programs run. A field that is added, or an integer that is made wider in time, cannot.
//   - A program must keep unknown fields, as protobuf does unless it is told to discard them.
//
// # Tour
//
//   - fingerprint.go: [Digester], [Message], [Bytes].
//   - walk.go: the values.
//   - paths.go: the set of paths, and the version.
package fingerprint
