-- One CockroachDB cluster over three regions, for idemd. Run once, as an administrator:
--   cockroach sql --url … --file deploy/cockroachdb/regions.sql
-- Not run where it was written: there was no CockroachDB. Every statement parses with its grammar
-- and names the page of https://www.cockroachlabs.com/docs/v25.4/ that it comes from.
--
-- The nodes were started with --locality=region=eu (us, ap): idemd's regions have the same names.

-- create-database. It survives the loss of a region: every write waits for a second region, so the
-- nearest other one is what a claim costs. (survive-failure: three regions at least.)
CREATE DATABASE IF NOT EXISTS idemd PRIMARY REGION "eu" REGIONS "eu", "us", "ap" SURVIVE REGION FAILURE;

-- create-user, grant. One user migrates and serves, so that the tables are its own.
CREATE USER IF NOT EXISTS idemd;
GRANT CONNECT, CREATE ON DATABASE idemd TO idemd;

-- What idemd makes itself: tables of each region's buckets with LOCALITY REGIONAL BY TABLE IN that
-- region (create-table), pre-split (alter-table) and with a short gc.ttlseconds
-- (configure-replication-zones). `idemd migrate print` shows all of it. Then, in each region:
--   IDEMD_STORE=postgres://idemd@…/idemd?sslmode=verify-full idemd migrate up --region eu   # then clock.sql, once
--   idemd serve --region eu --topology topology.yaml --stand-in us --stand-in ap …
-- --stand-in lets this region serve another's keys by the database while its idemd servers are gone.
