import type { DatabaseSync } from "node:sqlite";
import { messageOf } from "../../platform/message-of.ts";
import { inTransaction } from "./transaction.ts";

/** Which sandboxes count against limits. Part of released steps, so never changed either. */
const holdsItsPlace = (row: "NEW" | "OLD" | "sandboxes") =>
  `(${row}.state IN ('creating', 'running', 'unhealthy') OR (${row}.state = 'expired' AND ${row}.runtime_ended = 0))`;

/**
 * Numbered steps from an empty database to the newest shape; step n brings `user_version` to n. A released step is
 * never changed: what comes later is a new step.
 */
export const migrations: readonly string[] = [
  `
  CREATE TABLE settings (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
  ) STRICT, WITHOUT ROWID;

  CREATE TABLE sandboxes (
    id TEXT PRIMARY KEY,
    runtime_id TEXT NOT NULL,
    state TEXT NOT NULL,
    provider TEXT NOT NULL,
    worker_id TEXT NOT NULL,
    image TEXT NOT NULL,
    memory_mb INTEGER NOT NULL,
    vcpus INTEGER NOT NULL,
    owner_id TEXT NOT NULL,
    metadata TEXT NOT NULL,
    env TEXT NOT NULL,
    user TEXT,
    workdir TEXT,
    network TEXT,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    destroyed_at INTEGER,
    destroy_requested INTEGER NOT NULL,
    error TEXT
  ) STRICT;
  CREATE INDEX sandboxes_newest ON sandboxes (created_at DESC, id DESC);
  CREATE INDEX sandboxes_live ON sandboxes (created_at DESC, id DESC) WHERE state <> 'destroyed';
  CREATE INDEX sandboxes_active ON sandboxes (owner_id) WHERE state IN ('creating', 'running', 'unhealthy');
  CREATE INDEX sandboxes_destroyed ON sandboxes (destroyed_at) WHERE state = 'destroyed';

  CREATE TABLE idempotency (
    owner_id TEXT NOT NULL,
    key TEXT NOT NULL,
    body_hash TEXT NOT NULL,
    sandbox_id TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (owner_id, key)
  ) STRICT, WITHOUT ROWID;
  CREATE INDEX idempotency_sandbox ON idempotency (sandbox_id);
  CREATE INDEX idempotency_expiry ON idempotency (expires_at);

  CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    type TEXT NOT NULL,
    sandbox_id TEXT NOT NULL,
    timestamp INTEGER NOT NULL,
    data TEXT
  ) STRICT;
  `,
  // Counters that change with the rows they count, whichever statement changes those; indexes for the filters of lists.
  `
  CREATE TABLE counters (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
  ) STRICT, WITHOUT ROWID;
  INSERT INTO counters (name, value) VALUES
    ('events', (SELECT coalesce(max(id), 0) FROM events)),
    ('active', (SELECT count(*) FROM sandboxes WHERE state IN ('creating', 'running', 'unhealthy'))),
    ('destroyed', (SELECT count(*) FROM sandboxes WHERE state = 'destroyed'));

  CREATE TABLE active_owners (
    owner_id TEXT PRIMARY KEY,
    active INTEGER NOT NULL
  ) STRICT, WITHOUT ROWID;
  INSERT INTO active_owners (owner_id, active)
    SELECT owner_id, count(*) FROM sandboxes
    WHERE owner_id <> '' AND state IN ('creating', 'running', 'unhealthy') GROUP BY owner_id;

  CREATE TRIGGER sandbox_active_inserted AFTER INSERT ON sandboxes
    WHEN NEW.state IN ('creating', 'running', 'unhealthy')
  BEGIN
    UPDATE counters SET value = value + 1 WHERE name = 'active';
    INSERT INTO active_owners (owner_id, active) SELECT NEW.owner_id, 1 WHERE NEW.owner_id <> ''
      ON CONFLICT (owner_id) DO UPDATE SET active = active + 1;
  END;
  CREATE TRIGGER sandbox_active_left AFTER UPDATE OF state ON sandboxes
    WHEN OLD.state IN ('creating', 'running', 'unhealthy') AND NEW.state NOT IN ('creating', 'running', 'unhealthy')
  BEGIN
    UPDATE counters SET value = value - 1 WHERE name = 'active';
    UPDATE active_owners SET active = active - 1 WHERE owner_id = OLD.owner_id;
    DELETE FROM active_owners WHERE owner_id = OLD.owner_id AND active <= 0;
  END;
  CREATE TRIGGER sandbox_active_joined AFTER UPDATE OF state ON sandboxes
    WHEN NEW.state IN ('creating', 'running', 'unhealthy') AND OLD.state NOT IN ('creating', 'running', 'unhealthy')
  BEGIN
    UPDATE counters SET value = value + 1 WHERE name = 'active';
    INSERT INTO active_owners (owner_id, active) SELECT NEW.owner_id, 1 WHERE NEW.owner_id <> ''
      ON CONFLICT (owner_id) DO UPDATE SET active = active + 1;
  END;
  CREATE TRIGGER sandbox_active_deleted AFTER DELETE ON sandboxes
    WHEN OLD.state IN ('creating', 'running', 'unhealthy')
  BEGIN
    UPDATE counters SET value = value - 1 WHERE name = 'active';
    UPDATE active_owners SET active = active - 1 WHERE owner_id = OLD.owner_id;
    DELETE FROM active_owners WHERE owner_id = OLD.owner_id AND active <= 0;
  END;
  CREATE TRIGGER sandbox_destroyed_inserted AFTER INSERT ON sandboxes WHEN NEW.state = 'destroyed'
  BEGIN
    UPDATE counters SET value = value + 1 WHERE name = 'destroyed';
  END;
  CREATE TRIGGER sandbox_destroyed_joined AFTER UPDATE OF state ON sandboxes
    WHEN NEW.state = 'destroyed' AND OLD.state <> 'destroyed'
  BEGIN
    UPDATE counters SET value = value + 1 WHERE name = 'destroyed';
  END;
  CREATE TRIGGER sandbox_destroyed_deleted AFTER DELETE ON sandboxes WHEN OLD.state = 'destroyed'
  BEGIN
    UPDATE counters SET value = value - 1 WHERE name = 'destroyed';
  END;

  DROP INDEX sandboxes_active;
  DROP INDEX sandboxes_destroyed;
  CREATE INDEX sandboxes_owned ON sandboxes (owner_id, created_at DESC, id DESC) WHERE owner_id <> '';
  CREATE INDEX sandboxes_owned_live ON sandboxes (owner_id, created_at DESC, id DESC)
    WHERE owner_id <> '' AND state <> 'destroyed';
  CREATE INDEX sandboxes_destroyed ON sandboxes (destroyed_at, id) WHERE state = 'destroyed';
  `,
  `
  ALTER TABLE sandboxes ADD COLUMN image_resolved TEXT;
  `,
  // Names; memory and processors counted beside the number; quotas, templates, keys, audit; whose an event is.
  `
  ALTER TABLE sandboxes ADD COLUMN name TEXT;
  CREATE UNIQUE INDEX sandboxes_named ON sandboxes (owner_id, name)
    WHERE name IS NOT NULL AND state IN ('creating', 'running', 'unhealthy');

  DROP TRIGGER sandbox_active_inserted;
  DROP TRIGGER sandbox_active_left;
  DROP TRIGGER sandbox_active_joined;
  DROP TRIGGER sandbox_active_deleted;
  DROP TABLE active_owners;
  DELETE FROM counters WHERE name = 'active';

  CREATE TABLE in_use (
    owner_id TEXT PRIMARY KEY,
    sandboxes INTEGER NOT NULL,
    memory_mb INTEGER NOT NULL,
    vcpus INTEGER NOT NULL
  ) STRICT, WITHOUT ROWID;
  CREATE TABLE in_use_by_all (
    sandboxes INTEGER NOT NULL,
    memory_mb INTEGER NOT NULL,
    vcpus INTEGER NOT NULL
  ) STRICT;
  INSERT INTO in_use (owner_id, sandboxes, memory_mb, vcpus)
    SELECT owner_id, count(*), sum(memory_mb), sum(vcpus) FROM sandboxes
    WHERE owner_id <> '' AND state IN ('creating', 'running', 'unhealthy') GROUP BY owner_id;
  INSERT INTO in_use_by_all (sandboxes, memory_mb, vcpus)
    SELECT count(*), coalesce(sum(memory_mb), 0), coalesce(sum(vcpus), 0) FROM sandboxes
    WHERE state IN ('creating', 'running', 'unhealthy');

  CREATE TRIGGER sandbox_active_inserted AFTER INSERT ON sandboxes
    WHEN NEW.state IN ('creating', 'running', 'unhealthy')
  BEGIN
    UPDATE in_use_by_all
      SET sandboxes = sandboxes + 1, memory_mb = memory_mb + NEW.memory_mb, vcpus = vcpus + NEW.vcpus;
    INSERT INTO in_use (owner_id, sandboxes, memory_mb, vcpus)
      SELECT NEW.owner_id, 1, NEW.memory_mb, NEW.vcpus WHERE NEW.owner_id <> ''
      ON CONFLICT (owner_id) DO UPDATE
      SET sandboxes = sandboxes + 1, memory_mb = memory_mb + excluded.memory_mb, vcpus = vcpus + excluded.vcpus;
  END;
  CREATE TRIGGER sandbox_active_left AFTER UPDATE OF state ON sandboxes
    WHEN OLD.state IN ('creating', 'running', 'unhealthy') AND NEW.state NOT IN ('creating', 'running', 'unhealthy')
  BEGIN
    UPDATE in_use_by_all
      SET sandboxes = sandboxes - 1, memory_mb = memory_mb - OLD.memory_mb, vcpus = vcpus - OLD.vcpus;
    UPDATE in_use SET sandboxes = sandboxes - 1, memory_mb = memory_mb - OLD.memory_mb, vcpus = vcpus - OLD.vcpus
      WHERE owner_id = OLD.owner_id;
    DELETE FROM in_use WHERE owner_id = OLD.owner_id AND sandboxes <= 0;
  END;
  CREATE TRIGGER sandbox_active_joined AFTER UPDATE OF state ON sandboxes
    WHEN NEW.state IN ('creating', 'running', 'unhealthy') AND OLD.state NOT IN ('creating', 'running', 'unhealthy')
  BEGIN
    UPDATE in_use_by_all
      SET sandboxes = sandboxes + 1, memory_mb = memory_mb + NEW.memory_mb, vcpus = vcpus + NEW.vcpus;
    INSERT INTO in_use (owner_id, sandboxes, memory_mb, vcpus)
      SELECT NEW.owner_id, 1, NEW.memory_mb, NEW.vcpus WHERE NEW.owner_id <> ''
      ON CONFLICT (owner_id) DO UPDATE
      SET sandboxes = sandboxes + 1, memory_mb = memory_mb + excluded.memory_mb, vcpus = vcpus + excluded.vcpus;
  END;
  CREATE TRIGGER sandbox_active_deleted AFTER DELETE ON sandboxes
    WHEN OLD.state IN ('creating', 'running', 'unhealthy')
  BEGIN
    UPDATE in_use_by_all
      SET sandboxes = sandboxes - 1, memory_mb = memory_mb - OLD.memory_mb, vcpus = vcpus - OLD.vcpus;
    UPDATE in_use SET sandboxes = sandboxes - 1, memory_mb = memory_mb - OLD.memory_mb, vcpus = vcpus - OLD.vcpus
      WHERE owner_id = OLD.owner_id;
    DELETE FROM in_use WHERE owner_id = OLD.owner_id AND sandboxes <= 0;
  END;

  CREATE TABLE quotas (
    owner_id TEXT PRIMARY KEY,
    max_sandboxes INTEGER NOT NULL,
    max_ttl_ms INTEGER NOT NULL,
    max_exec_timeout_ms INTEGER NOT NULL,
    max_memory_mb INTEGER NOT NULL,
    max_vcpus INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
  ) STRICT, WITHOUT ROWID;

  CREATE TABLE templates (
    name TEXT PRIMARY KEY,
    fields TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
  ) STRICT, WITHOUT ROWID;

  CREATE TABLE api_keys (
    name TEXT PRIMARY KEY,
    hash TEXT NOT NULL UNIQUE,
    owner_id TEXT NOT NULL,
    scopes TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    last_used_at INTEGER
  ) STRICT, WITHOUT ROWID;

  CREATE TABLE audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    created_at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    method TEXT NOT NULL,
    path TEXT NOT NULL,
    status INTEGER NOT NULL,
    duration_ms REAL NOT NULL,
    request_id TEXT NOT NULL,
    remote_addr TEXT NOT NULL,
    user_agent TEXT NOT NULL
  ) STRICT;
  CREATE INDEX audit_age ON audit (created_at, id);

  ALTER TABLE events ADD COLUMN owner_id TEXT;
  `,
  `
  ALTER TABLE sandboxes ADD COLUMN pool_vm TEXT;
  ALTER TABLE sandboxes ADD COLUMN pool_uid INTEGER;
  CREATE INDEX sandboxes_pool ON sandboxes (pool_vm, owner_id)
    WHERE pool_vm IS NOT NULL AND state <> 'destroyed';
  `,
  // Records of strangers have a share of the audit history of their own.
  `
  CREATE INDEX audit_strangers ON audit ((actor = 'anonymous'), id);
  CREATE TABLE audit_counts (
    stranger INTEGER PRIMARY KEY,
    records INTEGER NOT NULL
  ) STRICT;
  INSERT INTO audit_counts (stranger, records) VALUES
    (0, (SELECT count(*) FROM audit WHERE actor <> 'anonymous')),
    (1, (SELECT count(*) FROM audit WHERE actor = 'anonymous'));
  CREATE TRIGGER audit_inserted AFTER INSERT ON audit
  BEGIN
    UPDATE audit_counts SET records = records + 1 WHERE stranger = (NEW.actor = 'anonymous');
  END;
  CREATE TRIGGER audit_deleted AFTER DELETE ON audit
  BEGIN
    UPDATE audit_counts SET records = records - 1 WHERE stranger = (OLD.actor = 'anonymous');
  END;
  `,
  // Users and VMs of the pool counted as the rows change, so that a slot costs the same in a small pool and a large one.
  `
  CREATE TABLE pool_users (
    owner_id TEXT NOT NULL,
    vm TEXT NOT NULL,
    uid INTEGER NOT NULL,
    provider TEXT NOT NULL,
    sandboxes INTEGER NOT NULL,
    PRIMARY KEY (owner_id, vm)
  ) STRICT, WITHOUT ROWID;
  CREATE TABLE pool_vms (
    vm TEXT PRIMARY KEY,
    provider TEXT NOT NULL,
    users INTEGER NOT NULL
  ) STRICT, WITHOUT ROWID;
  CREATE INDEX pool_vms_room ON pool_vms (provider, users DESC, vm);

  CREATE TRIGGER pool_user_came AFTER INSERT ON pool_users
  BEGIN
    INSERT INTO pool_vms (vm, provider, users) VALUES (NEW.vm, NEW.provider, 1)
      ON CONFLICT (vm) DO UPDATE SET users = users + 1;
  END;
  CREATE TRIGGER pool_user_left AFTER DELETE ON pool_users
  BEGIN
    UPDATE pool_vms SET users = users - 1 WHERE vm = OLD.vm;
    DELETE FROM pool_vms WHERE vm = OLD.vm AND users <= 0;
  END;
  INSERT INTO pool_users (owner_id, vm, uid, provider, sandboxes)
    SELECT owner_id, pool_vm, min(pool_uid), min(provider), count(*) FROM sandboxes
    WHERE pool_vm IS NOT NULL AND pool_uid IS NOT NULL AND state IN ('creating', 'running', 'unhealthy')
    GROUP BY owner_id, pool_vm;

  CREATE TRIGGER sandbox_pool_inserted AFTER INSERT ON sandboxes
    WHEN NEW.pool_vm IS NOT NULL AND NEW.state IN ('creating', 'running', 'unhealthy')
  BEGIN
    INSERT INTO pool_users (owner_id, vm, uid, provider, sandboxes)
      VALUES (NEW.owner_id, NEW.pool_vm, NEW.pool_uid, NEW.provider, 1)
      ON CONFLICT (owner_id, vm) DO UPDATE SET sandboxes = sandboxes + 1;
  END;
  CREATE TRIGGER sandbox_pool_joined AFTER UPDATE OF state ON sandboxes
    WHEN NEW.pool_vm IS NOT NULL
      AND NEW.state IN ('creating', 'running', 'unhealthy') AND OLD.state NOT IN ('creating', 'running', 'unhealthy')
  BEGIN
    INSERT INTO pool_users (owner_id, vm, uid, provider, sandboxes)
      VALUES (NEW.owner_id, NEW.pool_vm, NEW.pool_uid, NEW.provider, 1)
      ON CONFLICT (owner_id, vm) DO UPDATE SET sandboxes = sandboxes + 1;
  END;
  CREATE TRIGGER sandbox_pool_left AFTER UPDATE OF state ON sandboxes
    WHEN OLD.pool_vm IS NOT NULL
      AND OLD.state IN ('creating', 'running', 'unhealthy') AND NEW.state NOT IN ('creating', 'running', 'unhealthy')
  BEGIN
    UPDATE pool_users SET sandboxes = sandboxes - 1 WHERE owner_id = OLD.owner_id AND vm = OLD.pool_vm;
    DELETE FROM pool_users WHERE owner_id = OLD.owner_id AND vm = OLD.pool_vm AND sandboxes <= 0;
  END;
  CREATE TRIGGER sandbox_pool_deleted AFTER DELETE ON sandboxes
    WHEN OLD.pool_vm IS NOT NULL AND OLD.state IN ('creating', 'running', 'unhealthy')
  BEGIN
    UPDATE pool_users SET sandboxes = sandboxes - 1 WHERE owner_id = OLD.owner_id AND vm = OLD.pool_vm;
    DELETE FROM pool_users WHERE owner_id = OLD.owner_id AND vm = OLD.pool_vm AND sandboxes <= 0;
  END;
  `,
  // Events that a change of a sandbox means, until they stand in the history.
  `
  CREATE TABLE untold (
    sandbox_id TEXT NOT NULL,
    type TEXT NOT NULL,
    owner_id TEXT NOT NULL,
    timestamp INTEGER NOT NULL,
    data TEXT,
    PRIMARY KEY (sandbox_id, type)
  ) STRICT, WITHOUT ROWID;
  `,
  // How many events each owner has in the history, so that whoever has most gives way.
  `
  UPDATE events SET owner_id = '' WHERE owner_id IS NULL;
  CREATE INDEX events_owned ON events (owner_id, id);
  CREATE TABLE event_owners (
    owner_id TEXT PRIMARY KEY,
    events INTEGER NOT NULL
  ) STRICT, WITHOUT ROWID;
  CREATE INDEX event_owners_most ON event_owners (events);
  INSERT INTO event_owners (owner_id, events) SELECT owner_id, count(*) FROM events GROUP BY owner_id;
  INSERT INTO counters (name, value) VALUES ('events_kept', (SELECT count(*) FROM events));
  `,
  // How many events of each owner were forgotten at most, and up to which id: who comes back after some is told. Of owners
  // that have no row, and of those forgotten before this step, what can be said of all.
  `
  INSERT INTO counters (name, value) SELECT 'events_forgotten_upto', CASE
    WHEN (SELECT coalesce(max(id), 0) FROM events) < last.value THEN last.value
    ELSE coalesce((
      SELECT max(id) - 1 FROM events AS kept
      WHERE id > 1 AND NOT EXISTS (SELECT 1 FROM events WHERE id = kept.id - 1)), 0)
    END FROM counters AS last WHERE last.name = 'events';
  INSERT INTO counters (name, value)
    SELECT 'events_forgotten_of_others', value FROM counters WHERE name = 'events_forgotten_upto';
  ALTER TABLE event_owners ADD COLUMN forgotten INTEGER NOT NULL DEFAULT 0;
  ALTER TABLE event_owners ADD COLUMN forgotten_upto INTEGER NOT NULL DEFAULT 0;
  UPDATE event_owners SET forgotten_upto = min(
    (SELECT value FROM counters WHERE name = 'events_forgotten_upto'),
    coalesce((SELECT min(id) - 1 FROM events WHERE events.owner_id = event_owners.owner_id), 0));
  UPDATE event_owners SET forgotten = forgotten_upto;
  CREATE INDEX event_owners_without ON event_owners (forgotten_upto) WHERE events <= 0;
  `,
  // Which records share the strangers' part of the audit history stands in them: it is more than who has no name.
  `
  DROP TRIGGER audit_inserted;
  DROP TRIGGER audit_deleted;
  DROP INDEX audit_strangers;
  ALTER TABLE audit ADD COLUMN stranger INTEGER NOT NULL DEFAULT 0;
  UPDATE audit SET stranger = 1 WHERE actor = 'anonymous';
  CREATE INDEX audit_strangers ON audit (stranger, id);
  CREATE TRIGGER audit_inserted AFTER INSERT ON audit
  BEGIN
    UPDATE audit_counts SET records = records + 1 WHERE stranger = NEW.stranger;
  END;
  CREATE TRIGGER audit_deleted AFTER DELETE ON audit
  BEGIN
    UPDATE audit_counts SET records = records - 1 WHERE stranger = OLD.stranger;
  END;
  `,
  // Lists of one name, of everybody and of one owner.
  `
  CREATE INDEX sandboxes_of_name ON sandboxes (name, created_at DESC, id DESC) WHERE name IS NOT NULL;
  CREATE INDEX sandboxes_owned_of_name ON sandboxes (owner_id, name, created_at DESC, id DESC)
    WHERE name IS NOT NULL AND owner_id <> '';
  `,
  // A sandbox that has expired takes up its place, and its slot in the pool, until its runtime has ended. Of one that was in
  // state error that is known already.
  `
  ALTER TABLE sandboxes ADD COLUMN runtime_ended INTEGER NOT NULL DEFAULT 0;
  UPDATE sandboxes SET runtime_ended = 1 WHERE state = 'error';
  CREATE TRIGGER sandbox_runtime_ended AFTER UPDATE OF state ON sandboxes WHEN NEW.state = 'error'
  BEGIN
    UPDATE sandboxes SET runtime_ended = 1 WHERE id = NEW.id;
  END;

  DROP TRIGGER sandbox_active_inserted;
  DROP TRIGGER sandbox_active_left;
  DROP TRIGGER sandbox_active_joined;
  DROP TRIGGER sandbox_active_deleted;
  DELETE FROM in_use;
  DELETE FROM in_use_by_all;
  INSERT INTO in_use (owner_id, sandboxes, memory_mb, vcpus)
    SELECT owner_id, count(*), sum(memory_mb), sum(vcpus) FROM sandboxes
    WHERE owner_id <> '' AND state <> 'destroyed' AND ${holdsItsPlace("sandboxes")} GROUP BY owner_id;
  INSERT INTO in_use_by_all (sandboxes, memory_mb, vcpus)
    SELECT count(*), coalesce(sum(memory_mb), 0), coalesce(sum(vcpus), 0) FROM sandboxes
    WHERE state <> 'destroyed' AND ${holdsItsPlace("sandboxes")};

  CREATE TRIGGER sandbox_active_inserted AFTER INSERT ON sandboxes WHEN ${holdsItsPlace("NEW")}
  BEGIN
    UPDATE in_use_by_all
      SET sandboxes = sandboxes + 1, memory_mb = memory_mb + NEW.memory_mb, vcpus = vcpus + NEW.vcpus;
    INSERT INTO in_use (owner_id, sandboxes, memory_mb, vcpus)
      SELECT NEW.owner_id, 1, NEW.memory_mb, NEW.vcpus WHERE NEW.owner_id <> ''
      ON CONFLICT (owner_id) DO UPDATE
      SET sandboxes = sandboxes + 1, memory_mb = memory_mb + excluded.memory_mb, vcpus = vcpus + excluded.vcpus;
  END;
  CREATE TRIGGER sandbox_active_left AFTER UPDATE OF state ON sandboxes WHEN ${holdsItsPlace("OLD")} AND NOT ${holdsItsPlace("NEW")}
  BEGIN
    UPDATE in_use_by_all
      SET sandboxes = sandboxes - 1, memory_mb = memory_mb - OLD.memory_mb, vcpus = vcpus - OLD.vcpus;
    UPDATE in_use SET sandboxes = sandboxes - 1, memory_mb = memory_mb - OLD.memory_mb, vcpus = vcpus - OLD.vcpus
      WHERE owner_id = OLD.owner_id;
    DELETE FROM in_use WHERE owner_id = OLD.owner_id AND sandboxes <= 0;
  END;
  CREATE TRIGGER sandbox_active_joined AFTER UPDATE OF state ON sandboxes WHEN ${holdsItsPlace("NEW")} AND NOT ${holdsItsPlace("OLD")}
  BEGIN
    UPDATE in_use_by_all
      SET sandboxes = sandboxes + 1, memory_mb = memory_mb + NEW.memory_mb, vcpus = vcpus + NEW.vcpus;
    INSERT INTO in_use (owner_id, sandboxes, memory_mb, vcpus)
      SELECT NEW.owner_id, 1, NEW.memory_mb, NEW.vcpus WHERE NEW.owner_id <> ''
      ON CONFLICT (owner_id) DO UPDATE
      SET sandboxes = sandboxes + 1, memory_mb = memory_mb + excluded.memory_mb, vcpus = vcpus + excluded.vcpus;
  END;
  CREATE TRIGGER sandbox_active_deleted AFTER DELETE ON sandboxes WHEN ${holdsItsPlace("OLD")}
  BEGIN
    UPDATE in_use_by_all
      SET sandboxes = sandboxes - 1, memory_mb = memory_mb - OLD.memory_mb, vcpus = vcpus - OLD.vcpus;
    UPDATE in_use SET sandboxes = sandboxes - 1, memory_mb = memory_mb - OLD.memory_mb, vcpus = vcpus - OLD.vcpus
      WHERE owner_id = OLD.owner_id;
    DELETE FROM in_use WHERE owner_id = OLD.owner_id AND sandboxes <= 0;
  END;

  DROP TRIGGER sandbox_pool_inserted;
  DROP TRIGGER sandbox_pool_joined;
  DROP TRIGGER sandbox_pool_left;
  DROP TRIGGER sandbox_pool_deleted;
  DELETE FROM pool_users;
  INSERT INTO pool_users (owner_id, vm, uid, provider, sandboxes)
    SELECT owner_id, pool_vm, coalesce(min(CASE WHEN state <> 'expired' THEN pool_uid END), min(pool_uid)),
      min(provider), count(*) FROM sandboxes
    WHERE pool_vm IS NOT NULL AND pool_uid IS NOT NULL AND state <> 'destroyed' AND ${holdsItsPlace("sandboxes")}
    GROUP BY owner_id, pool_vm;

  CREATE TRIGGER sandbox_pool_inserted AFTER INSERT ON sandboxes WHEN NEW.pool_vm IS NOT NULL AND ${holdsItsPlace("NEW")}
  BEGIN
    INSERT INTO pool_users (owner_id, vm, uid, provider, sandboxes)
      VALUES (NEW.owner_id, NEW.pool_vm, NEW.pool_uid, NEW.provider, 1)
      ON CONFLICT (owner_id, vm) DO UPDATE SET sandboxes = sandboxes + 1;
  END;
  CREATE TRIGGER sandbox_pool_joined AFTER UPDATE OF state ON sandboxes
    WHEN NEW.pool_vm IS NOT NULL AND ${holdsItsPlace("NEW")} AND NOT ${holdsItsPlace("OLD")}
  BEGIN
    INSERT INTO pool_users (owner_id, vm, uid, provider, sandboxes)
      VALUES (NEW.owner_id, NEW.pool_vm, NEW.pool_uid, NEW.provider, 1)
      ON CONFLICT (owner_id, vm) DO UPDATE SET sandboxes = sandboxes + 1;
  END;
  CREATE TRIGGER sandbox_pool_left AFTER UPDATE OF state ON sandboxes
    WHEN OLD.pool_vm IS NOT NULL AND ${holdsItsPlace("OLD")} AND NOT ${holdsItsPlace("NEW")}
  BEGIN
    UPDATE pool_users SET sandboxes = sandboxes - 1 WHERE owner_id = OLD.owner_id AND vm = OLD.pool_vm;
    DELETE FROM pool_users WHERE owner_id = OLD.owner_id AND vm = OLD.pool_vm AND sandboxes <= 0;
  END;
  CREATE TRIGGER sandbox_pool_deleted AFTER DELETE ON sandboxes WHEN OLD.pool_vm IS NOT NULL AND ${holdsItsPlace("OLD")}
  BEGIN
    UPDATE pool_users SET sandboxes = sandboxes - 1 WHERE owner_id = OLD.owner_id AND vm = OLD.pool_vm;
    DELETE FROM pool_users WHERE owner_id = OLD.owner_id AND vm = OLD.pool_vm AND sandboxes <= 0;
  END;
  `,
  `
  ALTER TABLE sandboxes ADD COLUMN ends_itself_at INTEGER;
  `,
  `
  CREATE TABLE runs (
    id TEXT PRIMARY KEY,
    sandboxes INTEGER NOT NULL
  ) STRICT, WITHOUT ROWID;
  `,
  // Lists of one name that tell of no destroyed sandbox, which may have been many of that name.
  `
  CREATE INDEX sandboxes_live_of_name ON sandboxes (name, created_at DESC, id DESC)
    WHERE name IS NOT NULL AND state <> 'destroyed';
  CREATE INDEX sandboxes_owned_live_of_name ON sandboxes (owner_id, name, created_at DESC, id DESC)
    WHERE name IS NOT NULL AND owner_id <> '' AND state <> 'destroyed';
  `,
];

/** Brings the database to the newest shape, each step in a transaction of its own. */
export function migrate(
  db: DatabaseSync,
  options: { path: string; steps?: readonly string[] } = { path: "" },
): void {
  const steps = options.steps ?? migrations;
  const current = Number(db.prepare("PRAGMA user_version").get()?.user_version ?? 0);
  if (current > steps.length) {
    throw new Error(
      `the database ${options.path} has version ${current}, this release knows versions up to ${steps.length}: ` +
        "start a newer release of alcove, or give it another database",
    );
  }
  for (let version = current + 1; version <= steps.length; version++) {
    try {
      inTransaction(db, () => {
        db.exec(steps[version - 1] ?? "");
        db.exec(`PRAGMA user_version = ${version}`);
      });
    } catch (error) {
      throw new Error(
        `the database ${options.path} could not be brought to version ${version}: ${messageOf(error)}`,
        { cause: error },
      );
    }
  }
}
