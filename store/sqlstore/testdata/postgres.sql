-- The migrations that were made, and with which version's code each can still be used.
CREATE TABLE IF NOT EXISTS idem_schema (
  version int4 PRIMARY KEY,
  compatible int4 NOT NULL
);

-- Migration 0001_begin.
-- The registry of buckets. State 1: open; 2: retired, its live rows have moved on and its
-- table is dropped once no replica looks for it any more. Changed is when that state began.
CREATE TABLE IF NOT EXISTS idem_buckets (
  region text NOT NULL,
  tier int2 NOT NULL,
  start_us int8 NOT NULL,
  state int2 NOT NULL,
  changed_us int8 NOT NULL,
  PRIMARY KEY (region, tier, start_us)
);

-- The newest time of the database's clock that any replica has seen.
CREATE TABLE IF NOT EXISTS idem_clock (
  region text PRIMARY KEY,
  newest_us int8 NOT NULL
);

-- Namespaces. Settings are a message idemd.v1.Namespace.
CREATE TABLE IF NOT EXISTS idem_namespaces (
  name text PRIMARY KEY,
  settings bytea NOT NULL
);

INSERT INTO idem_schema (version, compatible) VALUES (1, 1) ON CONFLICT (version) DO NOTHING;

-- Migration 0002_members.
-- What the store of each region knows of itself and of the other regions' stores, in JSON.
CREATE TABLE IF NOT EXISTS idem_members (
  region text PRIMARY KEY,
  membership text NOT NULL
);

INSERT INTO idem_schema (version, compatible) VALUES (2, 2) ON CONFLICT (version) DO NOTHING;

-- Migration 0003_pages.
-- What seals where a listing goes on, which no caller may know or choose. All replicas of a region have the same.
ALTER TABLE idem_members ADD COLUMN IF NOT EXISTS page_secret uuid NOT NULL DEFAULT gen_random_uuid();

INSERT INTO idem_schema (version, compatible) VALUES (3, 2) ON CONFLICT (version) DO NOTHING;

-- The servers of region us-east1 make a table for each bucket, such as this one.
CREATE TABLE IF NOT EXISTS idem_us_east1_day_0 (
  digest bytea PRIMARY KEY,
  key bytea NOT NULL DEFAULT '',
  state int2 NOT NULL,
  fence int8 NOT NULL DEFAULT 0,
  previous_fence int8 NOT NULL DEFAULT 0,
  attempt bytea NOT NULL DEFAULT '',
  attempt_number int4 NOT NULL DEFAULT 0,
  fp_version int8 NOT NULL DEFAULT 0,
  fp bytea NOT NULL DEFAULT '',
  granted_at int8 NOT NULL DEFAULT 0,
  lease_end int8 NOT NULL DEFAULT 0,
  attempt_limit int8 NOT NULL DEFAULT 0,
  ended_at int8,
  expires_at int8,
  lapse_policy int2 NOT NULL DEFAULT 0,
  retention int8 NOT NULL DEFAULT 0,
  unsettled bool NOT NULL DEFAULT false,
  unsettled_since int8,
  released_with int2 NOT NULL DEFAULT 0,
  ended bytea NOT NULL DEFAULT '',
  outcome bytea,
  outcome_digest bytea,
  events bytea
) WITH (fillfactor = 70);

