#!/usr/bin/env python3
"""Writes vectors.txt, from the description in doc.go and nothing else."""
import hashlib
import json

def varint(n):
    out = b""
    while n >= 128:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])

def weight(region, word):
    data = b"".join(varint(len(s)) + s for s in (b"idemd.spread.v1", region.encode(), word.encode()))
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big")

print("# rule, entity and id (quoted), home, weight of the home in hexadecimal; separated by tabs")
for regions in (["eu", "us"], ["ap", "eu", "us"], ["a", "b", "c", "d", "e"], ["eu-west-1", "us-east-1"]):
    for entity, id in (("acct-7", "order-1"), ("", "order-1"), ("", "acct-7"), ("é", "x"), ("e\u0301", "x"),
                       ("a b=c", "x"), ("x" * 127, "y"), ("x" * 128, "y"), ("x" * 255, "y"), ("", "0")):
        word = entity or id
        home = max(sorted(regions), key=lambda r: weight(r, word))
        quote = lambda s: json.dumps(s, ensure_ascii=False)
        print("spread " + " ".join(regions), quote(entity), quote(id), home, "%016x" % weight(home, word), sep="\t")
