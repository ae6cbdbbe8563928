-- compatible: 2
-- What seals where a listing goes on, which no caller may know or choose. All replicas of a region have the same.
ALTER TABLE idem_members ADD COLUMN IF NOT EXISTS page_secret uuid NOT NULL DEFAULT gen_random_uuid();
