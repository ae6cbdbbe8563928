-- compatible: 2
-- What the store of each region knows of itself and of the other regions' stores, in JSON.
CREATE TABLE IF NOT EXISTS idem_members (
  region text PRIMARY KEY,
  membership text NOT NULL
);
