//! The SQL that nodes are asked. PostgreSQL 15 to 19 differ here and nowhere else in this
//! crate.
//!
//! Each part is an expression that gives JSON, and one statement asks all parts. A part that is
//! refused is left out from then on, so that the others are still answered.

use crate::replica;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Clock and role.
    Moment,
    /// [`crate::sample::Wal`].
    Wal,
    /// [`crate::views::Sender`].
    Senders,
    /// [`crate::views::Slot`].
    Slots,
    /// [`crate::views::Decoding`].
    Decoding,
    /// [`crate::views::Receiver`].
    Receiver,
    /// [`crate::views::Subscription`].
    Subscriptions,
    /// [`crate::replica::Replica`]; only where there is a state of some.
    Replicas,
    /// [`crate::views::Process`].
    Processes,
    /// [`crate::views::Clients`].
    Clients,
    /// [`crate::views::Prepared`].
    Prepared,
    /// [`crate::views::Archiver`].
    Archiver,
    /// [`crate::views::Conflicts`].
    Conflicts,
    /// [`crate::views::Totals`].
    Totals,
    /// [`crate::views::Extension`].
    Extension,
    /// [`crate::parallel_replay::ParallelReplay`]; only where the extension has views of it.
    ParallelReplay,
}

impl Part {
    /// The questions in the order in which they are asked: positions are close to the clock.
    pub const ALL: [Self; 16] = [
        Self::Moment,
        Self::Wal,
        Self::Senders,
        Self::Receiver,
        Self::Slots,
        Self::Decoding,
        Self::Subscriptions,
        Self::Replicas,
        Self::Processes,
        Self::Clients,
        Self::Prepared,
        Self::Archiver,
        Self::Conflicts,
        Self::Totals,
        Self::Extension,
        Self::ParallelReplay,
    ];

    /// Without this part nobody can know whether all is well.
    pub fn decides(self) -> bool {
        !matches!(self, Self::Totals | Self::Extension | Self::ParallelReplay)
    }

    /// The question in words, for reports about parts that cannot be read.
    pub fn words(self) -> &'static str {
        match self {
            Self::Moment => "clock and role",
            Self::Wal => "WAL positions",
            Self::Senders => "replicas (pg_stat_replication)",
            Self::Slots => "slots (pg_replication_slots)",
            Self::Decoding => "decoding (pg_stat_replication_slots)",
            Self::Receiver => "the walreceiver (pg_stat_wal_receiver)",
            Self::Subscriptions => "subscriptions (pg_subscription, pg_stat_subscription)",
            Self::Replicas => "replicas (schema lockstep)",
            Self::Processes => "what processes wait for (pg_stat_activity)",
            Self::Clients => "sessions (pg_stat_activity)",
            Self::Prepared => "prepared transactions (pg_prepared_xacts)",
            Self::Archiver => "the archiver (pg_stat_archiver)",
            Self::Conflicts => "recovery conflicts (pg_stat_database_conflicts)",
            Self::Totals => "totals (pg_stat_wal, pg_stat_slru, pg_stat_io)",
            Self::Extension => "extension lockstep's views",
            Self::ParallelReplay => "extension lockstep's views of parallel replay",
        }
    }
}

/// Where settings are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// For all that the session asks.
    Session,
    /// For the statements that follow in the message. They are one transaction, so nothing stays on a
    /// connection that a pooler gives to somebody else.
    Message,
}

/// The settings with which everything is asked, so that nothing here writes, waits for long, or calls
/// functions that somebody else created. A standby refuses all that is serializable, which a role may be by
/// its settings. Names in a database of SQL_ASCII may be any bytes: the
/// server refuses an answer that is not of the client's encoding, unless that is the same.
pub fn prepare(scope: Scope) -> String {
    let (set, read_only, is_local) = match scope {
        Scope::Session => ("SET", "default_transaction_read_only", false),
        Scope::Message => ("SET LOCAL", "transaction_read_only", true),
    };
    let isolation = match scope {
        Scope::Session => {
            "SET default_transaction_isolation = 'read committed'; SET idle_session_timeout = 0; "
        }
        Scope::Message => "",
    };
    format!(
        "SET LOCAL transaction_isolation = 'read committed'; {isolation}\
         {set} search_path = pg_catalog; {set} {read_only} = on; {set} statement_timeout = '10s'; \
         {set} lock_timeout = '1s'; {set} jit = off; {set} datestyle = 'ISO'; \
         SELECT set_config('client_encoding', 'SQL_ASCII', {is_local}) \
         WHERE current_setting('server_encoding') = 'SQL_ASCII'"
    )
}

/// Settings that causes or remedies depend on.
const SETTINGS: &[&str] = &[
    "synchronous_commit",
    "wal_writer_delay",
    "wal_level",
    "port",
    "listen_addresses",
    "unix_socket_directories",
    "cluster_name",
    "hot_standby_feedback",
    "max_standby_archive_delay",
    "max_standby_streaming_delay",
    "wal_segment_size",
    "recovery_min_apply_delay",
    "recovery_target",
    "recovery_target_action",
    "recovery_target_lsn",
    "recovery_target_name",
    "recovery_target_time",
    "recovery_target_xid",
    "max_connections",
    "max_worker_processes",
    "max_wal_senders",
    "max_prepared_transactions",
    "max_locks_per_transaction",
    "max_logical_replication_workers",
    "max_replication_slots",
    "wal_retrieve_retry_interval",
    "max_sync_workers_per_subscription",
    "recovery_prefetch",
    "maintenance_io_concurrency",
    "wal_receiver_status_interval",
    "max_slot_wal_keep_size",
    "logical_decoding_work_mem",
    "max_wal_size",
    "checkpoint_timeout",
    "wal_compression",
    "block_size",
    "archive_command",
    "archive_library",
    "archive_mode",
    "archive_timeout",
    "wal_sender_timeout",
    "wal_receiver_timeout",
    "shared_buffers",
    "shared_preload_libraries",
    "track_io_timing",
    "wal_sync_method",
    "fsync",
    "lockstep.enabled",
    "lockstep.replay_priority",
    "lockstep.read_throttle",
    "lockstep.replay_workers",
    "lockstep.replay_hot_standby",
];

/// The statement for [`crate::sample::Facts`]. The extension may be created on a server that
/// does not load it: on the primary of a standby that does.
pub fn facts() -> String {
    let names: Vec<String> = SETTINGS.iter().map(|name| format!("'{name}'")).collect();
    format!(
        "SELECT json_build_object(\
           'version', current_setting('server_version_num')::int, \
           'started_us', (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, \
           'database', current_database(), \
           'role', quote_ident(current_user), \
           'backend', pg_backend_pid(), \
           'monitor', pg_has_role('pg_read_all_stats', 'USAGE'), \
           'member', pg_has_role('pg_read_all_stats', 'MEMBER'), \
           'inherits', (SELECT rolinherit FROM pg_roles WHERE rolname = current_user), \
           'replicas', {}, \
           'settings', (SELECT json_object_agg(name, setting) FROM pg_settings WHERE name IN ({})), \
           'extension', (SELECT quote_ident(n.nspname) FROM pg_extension e JOIN pg_namespace n \
              ON n.oid = e.extnamespace WHERE e.extname = 'lockstep' \
              AND current_setting('lockstep.enabled', true) IS NOT NULL), \
           'parallel_replay', {HAS_PARALLEL_REPLAY})",
        replica::kept(),
        names.join(", ")
    )
}

/// Whether the extension has the views of [`Part::ParallelReplay`]. Its version 0.1 has none; views
/// of these names that are not its own are somebody else's.
const HAS_PARALLEL_REPLAY: &str = "(SELECT count(*) = 2 FROM pg_extension e \
       JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid \
         AND d.deptype = 'e' AND d.classid = 'pg_class'::regclass \
       JOIN pg_class c ON c.oid = d.objid JOIN pg_attribute a ON a.attrelid = c.oid \
     WHERE e.extname = 'lockstep' AND (c.relname, a.attname) IN \
       (('lockstep_stat_replay_pipeline', 'wait_lock_ms'), \
        ('lockstep_stat_replay_workers', 'wait_event')))";

/// The statement for the system identifier, which some services refuse.
pub const SYSTEM: &str = "SELECT system_identifier FROM pg_control_system()";

/// The statement for [`crate::views::WalFolder`]. The server looks at each file.
pub fn wal_folder() -> String {
    format!(
        "SELECT json_build_object('files', count(*), 'bytes', coalesce(sum(size), 0), 'oldest', \
         min({}) FILTER (WHERE name ~ '{SEGMENT}')) FROM pg_ls_waldir()",
        begin("name")
    )
}

/// Names of segments of WAL.
const SEGMENT: &str = "^[0-9A-F]{24}$";

/// The position at which a segment of this name begins.
fn begin(name: &str) -> String {
    format!(
        "('0/0'::pg_lsn + (('x' || substr({name}, 9, 8))::bit(32)::bigint * 4294967296 \
         + ('x' || substr({name}, 17, 8))::bit(32)::bigint \
         * pg_size_bytes(current_setting('wal_segment_size'))))"
    )
}

/// The statement for [`crate::views::ArchiveQueue`]. The server looks at each file.
pub const ARCHIVE_QUEUE: &str = "SELECT json_build_object('ready', count(*), 'oldest_ms', \
     1000 * extract(epoch FROM clock_timestamp() - min(modification))) \
     FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'";

/// The statement for [`crate::sample::Sample::dead_rows`]: those that autovacuum would remove by its default
/// settings.
pub const DEAD_ROWS: &str = "SELECT coalesce(sum(s.n_dead_tup), 0)::bigint FROM pg_stat_all_tables s \
     JOIN pg_class c ON c.oid = s.relid WHERE s.n_dead_tup > 50 + 0.2 * greatest(c.reltuples, 0)";

/// Most roles that are read.
pub const MOST_ROLES: usize = 1000;

/// The statement for [`crate::views::Background::roles`]: why a role may not ask for WAL, or null.
pub fn roles() -> String {
    format!(
        "SELECT coalesce(json_object_agg(rolname, CASE WHEN NOT rolcanlogin THEN 'LOGIN' \
           WHEN NOT rolreplication AND NOT rolsuper THEN 'REPLICATION' \
           WHEN rolvaliduntil < now() THEN 'VALID UNTIL ''infinity''' END), '{{}}') \
         FROM (SELECT * FROM pg_roles LIMIT {MOST_ROLES}) r"
    )
}

/// The statement for [`crate::views::Background::timeline`].
pub const TIMELINE: &str = "SELECT greatest(c.timeline_id, r.min_recovery_end_timeline) \
     FROM pg_control_checkpoint() c, pg_control_recovery() r";

/// The statement for [`crate::views::Background::collations`].
pub const COLLATIONS: &str = "SELECT coalesce(json_agg(d), '[]') FROM (\
       SELECT quote_ident(datname) AS database, datcollversion AS recorded, \
         pg_database_collation_actual_version(oid) AS actual FROM pg_database WHERE datallowconn \
       ORDER BY oid) d \
     WHERE recorded <> actual";

/// The statement for [`crate::views::Background::enabled_subscriptions`].
pub const ENABLED_SUBSCRIPTIONS: &str = "SELECT count(*) FROM pg_subscription WHERE subenabled";

/// The statement for [`crate::sample::Sample::end`] alone, which costs little.
pub const END: &str = "SELECT CASE WHEN pg_is_in_recovery() \
     THEN greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) \
     ELSE pg_current_wal_flush_lsn() END";

/// The expression for a part on a server of this major; None if the server has no such part.
/// `extension` is the schema of extension lockstep.
pub fn expression(part: Part, major: u32, extension: Option<&str>) -> Option<String> {
    let text = match part {
        Part::Moment => "json_build_object('in_recovery', pg_is_in_recovery(), \
             'clock_us', (extract(epoch FROM statement_timestamp()) * 1000000)::bigint, 'up_ms', \
             1000 * extract(epoch FROM statement_timestamp() - pg_postmaster_start_time()))"
            .to_owned(),
        Part::Wal => wal(),
        Part::Senders => list(
            "SELECT pid, coalesce(application_name, '') AS application_name, \
               coalesce(host(client_addr), client_hostname) AS client, state, sync_state, \
               sent_lsn, write_lsn, flush_lsn, replay_lsn, \
               1000 * extract(epoch FROM write_lag) AS write_lag_ms, \
               1000 * extract(epoch FROM flush_lag) AS flush_lag_ms, \
               1000 * extract(epoch FROM replay_lag) AS replay_lag_ms, \
               age(backend_xmin) AS xmin_age, \
               (extract(epoch FROM reply_time) * 1000000)::bigint AS replied_us, \
               1000 * extract(epoch FROM clock_timestamp() - backend_start) AS connected_ms, \
               EXISTS (SELECT FROM pg_stat_get_activity(s.pid) a WHERE a.datid IS NOT NULL) AS in_database \
             FROM pg_stat_replication s",
        ),
        Part::Slots => list(&format!(
            "SELECT slot_name, slot_type, plugin, database, temporary, active, active_pid, \
               greatest(age(xmin), age(catalog_xmin)) AS xmin_age, restart_lsn, \
               confirmed_flush_lsn, wal_status, safe_wal_size, {} AS synced \
             FROM pg_replication_slots",
            if major >= 17 { "synced" } else { "false" }
        )),
        Part::Decoding => list(
            "SELECT slot_name, spill_txns, spill_count, spill_bytes, stream_txns, stream_bytes, \
               total_txns, total_bytes FROM pg_stat_replication_slots",
        ),
        Part::Receiver => "(SELECT to_json(r) FROM (SELECT pid, status, written_lsn, flushed_lsn, \
               latest_end_lsn, 1000 * extract(epoch FROM clock_timestamp() - last_msg_receipt_time) \
                 AS message_age_ms, slot_name, sender_host, sender_port, \
               substring(conninfo FROM 'application_name=(.*?)(?: [a-z_]+=|$)') \
                 AS application_name FROM pg_stat_wal_receiver) r)"
            .to_owned(),
        Part::Subscriptions => list(&subscriptions(major)),
        Part::Replicas => replicas(),
        Part::Processes => list(PROCESSES),
        Part::Clients => CLIENTS.to_owned(),
        Part::Prepared => list(
            "SELECT gid, owner, database, age(transaction) AS xid_age, \
               1000 * extract(epoch FROM clock_timestamp() - prepared) AS age_ms \
             FROM pg_prepared_xacts ORDER BY prepared LIMIT 20",
        ),
        Part::Archiver => format!(
            "(SELECT to_json(r) FROM (SELECT archived_count, failed_count, last_failed_wal, \
               CASE WHEN last_archived_wal ~ '{SEGMENT}' THEN {} \
                 + pg_size_bytes(current_setting('wal_segment_size')) END AS archived_end, \
               1000 * extract(epoch FROM clock_timestamp() - last_archived_time) AS archived_age_ms, \
               1000 * extract(epoch FROM clock_timestamp() - last_failed_time) AS failed_age_ms \
             FROM pg_stat_archiver) r)",
            begin("last_archived_wal")
        ),
        Part::Conflicts => "(SELECT json_build_object('snapshot', sum(confl_snapshot), \
               'lock', sum(confl_lock), 'bufferpin', sum(confl_bufferpin), \
               'deadlock', sum(confl_deadlock)) FROM pg_stat_database_conflicts)"
            .to_owned(),
        Part::Totals => totals(major),
        Part::Extension => our_views(extension?),
        Part::ParallelReplay => parallel_replay(extension?),
    };
    Some(text)
}

fn list(select: &str) -> String {
    format!("(SELECT coalesce(json_agg(r), '[]') FROM ({select}) r)")
}

/// The expression for [`Part::Replicas`].
pub fn replicas() -> String {
    list(&replica::question())
}

fn wal() -> String {
    // The age is by the moment that clock_us says: with another reading of the clock a commit would
    // seem later each time that the session loses its core between the two.
    // Each function raises an error in the other role, so only one branch may run.
    "CASE WHEN pg_is_in_recovery() THEN json_build_object(\
       'receive', pg_last_wal_receive_lsn(), 'replay', pg_last_wal_replay_lsn(), \
       'replayed_commit_age_ms', \
          1000 * extract(epoch FROM statement_timestamp() - pg_last_xact_replay_timestamp()), \
       'pause', pg_get_wal_replay_pause_state(), \
       'next_xid', pg_snapshot_xmax(pg_current_snapshot())::text::bigint) \
     ELSE json_build_object('flush', pg_current_wal_flush_lsn(), \
       'insert', pg_current_wal_insert_lsn(), 'synchronous_standby_names', \
       current_setting('synchronous_standby_names'), \
       'next_xid', pg_snapshot_xmax(pg_current_snapshot())::text::bigint, 'timeline', \
       ('x' || left(pg_walfile_name(pg_current_wal_flush_lsn()), 8))::bit(32)::bigint) END"
        .to_owned()
}

/// The apply worker is the one without a table and, from 16 on, without a leader. Before 16 it
/// finds rows by a primary key or a replica identity only.
fn subscriptions(major: u32) -> String {
    let (no_leader, leads) = match major {
        ..=15 => ("", "(i.indisprimary OR i.indisreplident)"),
        _ => ("AND a.leader_pid IS NULL ", "i.indpred IS NULL"),
    };
    format!(
        "SELECT s.subname AS name, s.oid::bigint AS id, s.subenabled AS enabled, \
           s.subdisableonerr AS disable_on_error, s.subslotname AS slot_name, \
           (SELECT rolname FROM pg_roles o WHERE o.oid = s.subowner AND NOT o.rolcanlogin) \
             AS owner_without_login, \
           s.subsynccommit AS synchronous_commit, a.pid, a.received_lsn, a.latest_end_lsn, \
           1000 * extract(epoch FROM clock_timestamp() - a.last_msg_receipt_time) AS message_age_ms, \
           (SELECT count(*) FROM pg_subscription_rel r \
              WHERE r.srsubid = s.oid AND r.srsubstate <> 'r') AS unsynced_tables, \
           (SELECT coalesce(json_agg(u), '[]') FROM (\
              SELECT format('%I.%I', n.nspname, c.relname) AS \"table\", r.srsubstate AS state, w.pid, \
                p.tuples_processed AS rows \
              FROM pg_subscription_rel r JOIN pg_class c ON c.oid = r.srrelid \
                JOIN pg_namespace n ON n.oid = c.relnamespace \
                LEFT JOIN pg_stat_subscription w ON w.subid = s.oid AND w.relid = r.srrelid \
                LEFT JOIN pg_stat_progress_copy p ON p.pid = w.pid \
              WHERE r.srsubid = s.oid AND r.srsubstate <> 'r' \
              ORDER BY r.srsubstate IN ('i', 'd', 'f', 's'), c.oid LIMIT 20) u) AS unsynced, \
           coalesce((SELECT sum(value::bigint) FROM jsonb_each_text(to_jsonb(e)) \
              WHERE key ~ 'sync.*error_count'), 0) AS sync_errors, \
           coalesce(e.apply_error_count, 0) AS apply_errors, \
           (SELECT to_json(t) FROM (\
              SELECT format('%I.%I', n.nspname, c.relname) AS \"table\", \
                pg_stat_get_numscans(c.oid) AS searches, pg_stat_get_tuples_returned(c.oid) AS rows \
              FROM pg_subscription_rel r JOIN pg_class c ON c.oid = r.srrelid \
                JOIN pg_namespace n ON n.oid = c.relnamespace \
              WHERE r.srsubid = s.oid AND NOT EXISTS (SELECT FROM pg_index i \
                WHERE i.indrelid = c.oid AND i.indisvalid AND {leads}) \
              ORDER BY rows DESC, c.oid LIMIT 1) t) AS searched \
         FROM pg_subscription s \
         LEFT JOIN pg_stat_subscription a ON a.subid = s.oid AND a.relid IS NULL {no_leader}\
         LEFT JOIN pg_stat_subscription_stats e ON e.subid = s.oid \
         WHERE s.subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
}

/// pg_blocking_pids does not know what the startup process waits for, so its locks are looked
/// up. It calls each prepared transaction 0.
const PROCESSES: &str = "SELECT a.pid, a.backend_type, a.wait_event_type AS wait_type, \
       a.wait_event AS wait, \
       CASE WHEN a.wait_event_type <> 'Lock' OR a.wait_event_type IS NULL THEN '[]'::json \
            WHEN a.backend_type <> 'startup' THEN to_json(pg_blocking_pids(a.pid)) \
            ELSE (SELECT coalesce(json_agg(DISTINCT h.pid), '[]') FROM pg_locks w \
                  JOIN pg_locks h ON h.granted AND h.pid <> w.pid AND h.locktype = w.locktype \
                    AND h.database IS NOT DISTINCT FROM w.database \
                    AND h.relation IS NOT DISTINCT FROM w.relation \
                    AND h.virtualxid IS NOT DISTINCT FROM w.virtualxid \
                    AND h.transactionid IS NOT DISTINCT FROM w.transactionid \
                  WHERE w.pid = a.pid AND NOT w.granted) END AS blocked_by, \
       CASE WHEN a.wait_event_type = 'Lock' THEN (SELECT w.mode || ' on ' || CASE w.locktype \
              WHEN 'relation' THEN coalesce((SELECT w.relation::regclass::text FROM pg_database d \
                WHERE d.datname = current_database() AND w.database IN (0, d.oid)), 'a table') \
              WHEN 'transactionid' THEN 'transaction ' || w.transactionid ELSE w.locktype END \
            FROM pg_locks w WHERE w.pid = a.pid AND NOT w.granted LIMIT 1) END AS lock, \
       CASE WHEN a.wait_event_type = 'Lock' AND 0 = ANY (pg_blocking_pids(a.pid)) \
            THEN (SELECT json_agg(DISTINCT x.gid) FROM pg_locks w \
                  JOIN pg_locks h ON h.granted AND h.pid IS NULL AND h.locktype = w.locktype \
                    AND h.database IS NOT DISTINCT FROM w.database \
                    AND h.relation IS NOT DISTINCT FROM w.relation \
                    AND h.transactionid IS NOT DISTINCT FROM w.transactionid \
                  JOIN pg_locks t ON t.locktype = 'transactionid' AND t.granted AND t.pid IS NULL \
                    AND t.virtualtransaction = h.virtualtransaction \
                  JOIN pg_prepared_xacts x ON x.transaction = t.transactionid \
                  WHERE w.pid = a.pid AND NOT w.granted) END AS prepared \
     FROM pg_stat_activity a WHERE a.backend_type IN ('startup', 'walreceiver', 'walsender', \
       'walwriter', 'archiver', 'checkpointer', 'slotsync worker', 'logical replication worker', 'logical replication apply worker', \
       'logical replication parallel worker', 'logical replication tablesync worker')";

/// Sessions of clients; those with the oldest transactions come first.
const CLIENTS: &str = "(SELECT json_build_object(\
       'active', count(*) FILTER (WHERE state = 'active'), \
       'running', count(*) FILTER (WHERE state = 'active' AND wait_event IS NULL), \
       'awaiting_sync', count(*) FILTER (WHERE wait_event = 'SyncRep'), \
       'awaiting_sync_ms', 1000 * extract(epoch FROM clock_timestamp() \
          - min(query_start) FILTER (WHERE wait_event = 'SyncRep')), \
       'oldest', (SELECT coalesce(json_agg(o), '[]') FROM (SELECT pid, usename AS user, \
          datname AS database, state, 1000 * extract(epoch FROM clock_timestamp() - xact_start) \
            AS xact_age_ms, age(backend_xmin) AS xmin_age, age(backend_xid) AS xid_age, \
          wait_event AS wait, left(query, 200) AS query FROM pg_stat_activity \
          WHERE backend_type = 'client backend' AND xact_start IS NOT NULL \
            AND pid <> pg_backend_pid() ORDER BY xact_start LIMIT 20) o)) \
     FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid())";

fn totals(major: u32) -> String {
    let io = match major {
        ..=15 => "'[]'::json".to_owned(),
        _ => list(
            // WAL is an object of its own from 18 on; before that it is not counted.
            "SELECT backend_type, \
               coalesce(sum(reads) FILTER (WHERE object = 'relation'), 0) AS reads, \
               coalesce(sum(read_time) FILTER (WHERE object = 'relation'), 0) AS read_time_ms, \
               coalesce(sum(fsyncs) FILTER (WHERE object = 'wal'), 0) AS fsyncs, \
               coalesce(sum(fsync_time) FILTER (WHERE object = 'wal'), 0) AS fsync_time_ms \
             FROM pg_stat_io \
             WHERE backend_type IN ('startup', 'walreceiver') GROUP BY backend_type",
        ),
    };
    let checkpoints = match major {
        ..=16 => "checkpoints_timed + checkpoints_req FROM pg_stat_bgwriter",
        _ => "num_timed + num_requested FROM pg_stat_checkpointer",
    };
    // The SLRU is called Subtrans before 17.
    format!(
        "json_build_object('wal_bytes', (SELECT wal_bytes FROM pg_stat_wal), \
           'page_images', (SELECT wal_fpi FROM pg_stat_wal), \
           'checkpoints', (SELECT {checkpoints}), \
           'checksum_failures', (SELECT sum(checksum_failures)::bigint FROM pg_stat_database), \
           'damaged', (SELECT coalesce(json_agg(coalesce(quote_ident(datname), '')), '[]') \
              FROM (SELECT datname FROM pg_stat_database WHERE checksum_failures > 0 \
                ORDER BY datname LIMIT 20) d), \
           'index_builds', (SELECT count(*) FROM pg_stat_progress_create_index), \
           'subtransaction_lookups', (SELECT coalesce(sum(blks_hit + blks_read), 0) \
              FROM pg_stat_slru WHERE lower(name) IN ('subtrans', 'subtransaction')), \
           'io', {io})"
    )
}

fn our_views(schema: &str) -> String {
    format!(
        "(SELECT to_json(r) FROM (SELECT l.lag_ms, coalesce(l.conflicts, 0) AS conflicts, \
           coalesce(t.running, 0) AS running, coalesce(t.waiting, 0) AS waiting, \
           coalesce(t.concurrency_limit, 0) AS concurrency_limit, \
           coalesce(p.demoted, 0) AS demoted, p.method \
         FROM {schema}.lockstep_stat_replay l, {schema}.lockstep_stat_throttle t, \
           {schema}.lockstep_stat_priority p) r)"
    )
}

/// Progress of parallel replay. On a server that does not replay the views say what its last
/// recovery did.
fn parallel_replay(schema: &str) -> String {
    format!(
        "CASE WHEN pg_is_in_recovery() THEN (SELECT to_json(r) FROM (\
           SELECT p.parallel, w.helpers, p.records, p.dispatched, p.done_by_helpers, \
             p.inline_kind, p.inline_missing, p.inline_map, p.inline_large, p.inline_late, \
             p.barriers_ddl, p.barriers_checkpoint, p.barriers_other, \
             p.retired, p.record_distance, p.wal_distance, w.given_back, w.helper_bytes, \
             w.queue_depth, w.helper_waits, p.wait_ms AS startup_wait_ms, \
             p.wait_cpu_ms AS startup_wait_cpu_ms, p.wait_io_ms AS startup_wait_io_ms, \
             p.wait_lock_ms AS startup_wait_lock_ms, w.wait_ms AS helper_wait_ms \
           FROM {schema}.lockstep_stat_replay_pipeline p, \
             (SELECT count(pid) AS helpers, coalesce(sum(given_back), 0) AS given_back, \
                coalesce(sum(wait_ms), 0) AS wait_ms, coalesce(sum(bytes), 0) AS helper_bytes, \
                coalesce(sum(queue_depth), 0) AS queue_depth, \
                coalesce(string_agg(DISTINCT wait_event, ', ' ORDER BY wait_event), '') AS helper_waits \
              FROM {schema}.lockstep_stat_replay_workers) w) r) END"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_and_age_of_a_commit_are_of_one_moment() {
        for part in [Part::Moment, Part::Wal] {
            let text = expression(part, 15, None).unwrap();
            assert!(text.contains("statement_timestamp()"), "{text}");
            assert!(!text.contains("clock_timestamp()"), "{text}");
        }
    }

    #[test]
    fn versions_differ_where_they_must() {
        let of = |part, major| expression(part, major, None).unwrap();
        assert!(!of(Part::Subscriptions, 15).contains("leader_pid"));
        assert!(of(Part::Subscriptions, 16).contains("leader_pid"));
        assert!(of(Part::Subscriptions, 15).contains("indisreplident"));
        assert!(!of(Part::Subscriptions, 16).contains("indisreplident"));
        assert!(!of(Part::Totals, 15).contains("pg_stat_io"));
        assert!(of(Part::Totals, 18).contains("pg_stat_io"));
        assert!(of(Part::Totals, 16).contains("pg_stat_bgwriter"));
        assert!(of(Part::Totals, 17).contains("pg_stat_checkpointer"));
        assert!(of(Part::Slots, 16).contains("false AS synced"));
        assert!(of(Part::Slots, 17).contains("synced AS synced"));
        assert_eq!(expression(Part::Extension, 15, None), None);
        assert!(
            expression(Part::Extension, 15, Some("\"S\""))
                .unwrap()
                .contains("\"S\".lockstep_stat_replay")
        );
        assert_eq!(expression(Part::ParallelReplay, 15, None), None);
    }
}
