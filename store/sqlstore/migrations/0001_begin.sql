-- compatible: 1
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
