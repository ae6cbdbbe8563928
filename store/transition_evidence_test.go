package store

import (
	"bytes"
	"testing"
)

func TestCodeOf(t *testing.T) {
	unknown := []byte{8, 2}
	for name, c := range map[string]struct{ status, want []byte }{
		"OK":                  {nil, nil},
		"OK with a message":   {[]byte{18, 2, 'h', 'i'}, nil},
		"code alone":          {[]byte{8, 5}, []byte{8, 5}},
		"code first":          {[]byte{8, 5, 18, 2, 'h', 'i', 26, 1, 'd'}, []byte{8, 5}},
		"code last":           {[]byte{18, 2, 'h', 'i', 8, 5}, []byte{8, 5}},
		"code twice":          {[]byte{8, 5, 8, 7}, []byte{8, 7}},
		"code of two bytes":   {[]byte{8, 0xac, 2}, []byte{8, 0xac, 2}},
		"unknown fields":      {[]byte{8, 5, 0x79, 1, 2, 3, 4, 5, 6, 7, 8, 0x7d, 1, 2, 3, 4}, []byte{8, 5}},
		"no protobuf":         {[]byte("\xff\xff"), unknown},
		"a tag alone":         {[]byte{8, 5, 18}, unknown},
		"cut short":           {[]byte{8, 5, 18, 3, 'h', 'i'}, unknown},
		"a length of 2^64-1":  {[]byte{18, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1}, unknown},
		"a group":             {[]byte{8, 5, 0x7b}, unknown},
		"a fixed field short": {[]byte{0x7d, 1}, unknown},
	} {
		if got := codeOf(c.status); !bytes.Equal(got, c.want) {
			t.Errorf("%s: %x, want %x", name, got, c.want)
		}
	}
}
