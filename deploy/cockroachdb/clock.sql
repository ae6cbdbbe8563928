-- After the first `idemd migrate up`, once, as the tables' owner, in the database idemd. As
-- regions.sql it has not been run.
--
-- Every claim compares its time with its region's row of idem_clock. That row has to be in the
-- region, or each claim outside of the primary region pays a round trip to it. The region of a
-- row is computed from the key, so that it is found without asking the others
-- (https://www.cockroachlabs.com/docs/v25.4/alter-table#crdb_region).
ALTER TABLE idem_clock ADD COLUMN crdb_region crdb_internal_region NOT NULL
  AS (CASE region WHEN 'us' THEN 'us' WHEN 'ap' THEN 'ap' ELSE 'eu' END) STORED;
ALTER TABLE idem_clock SET LOCALITY REGIONAL BY ROW;
