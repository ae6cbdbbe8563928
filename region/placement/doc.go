// Package placement says which region is the home of a key. It imports nothing but the standard
// library and package store: servers and clients ask it alike, and must agree.
//
// A rule is one line of text:
//
//	fixed REGION                   all keys live there
//	prefix PREFIX=REGION ... *=REGION
//	                               by the longest prefix that the entity begins with; *, which
//	                               must be given, is for all others, an empty entity included
//	spread REGION REGION ...       by rendezvous hashing of the entity, or of the id if the entity
//	                               is empty
//
// Names are separated by spaces. A region's name is that of [CheckRegion]. A prefix is compared
// byte for byte; it has no white space and is not "*" alone, so that the last "=" of the word ends
// it. Two texts mean the same if [Rule.String] of them is the same.
//
// # Spreading
//
// The home is the region with the largest weight; of two with the same weight the one whose name
// comes first in byte order. The weight of a region for a word (the entity, or the id if the
// entity is empty) is a number of 64 bits without sign: the first eight bytes, big endian, of
//
//	SHA-256( d("idemd.spread.v1") d(region) d(word) )
//
// where d(s) is the length of s in bytes, as an unsigned varint (seven bits a byte, the lowest
// first, the high bit set in all but the last, as in Protocol Buffers), followed by s. The vectors
// in testdata/vectors.txt are for other languages to be tested with.
package placement
