//! Every cause, with its signal and its remedies.

use super::anew::{EMPTIES, SHARED, UNCOPIED};
use super::{
    Cause, Rule, connection, consumer, denied, ended, followed_twice, gone, halted, held, horizon,
    keyless, left, lists, lock, logical, machine, partial, partitions, paused, primaries,
    published, receive, refused, relay, renamed, replay, replica, restarted, ring, server,
    spool_full, standing, suspects, synchronised, synchronous, unarchived, unasked, unconfirmed,
    unfed, unfilled, unmade, unsuitable,
};

/// The order decides between causes that explain equally much.
pub const RULES: &[Rule] = &[
    Rule {
        cause: Cause::ReplayPaused,
        title: "replay is paused",
        signal: paused::by_somebody,
        remedies: &[
            "on {node}: SELECT pg_wal_replay_resume(); if somebody has paused it. If its log has \
             \"insufficient parameter settings\" instead, that stops {node}: raise what the log names, and \
             restart it",
        ],
    },
    Rule {
        cause: Cause::RecoveryTarget,
        title: "replay is paused at its recovery target, or before it",
        signal: paused::at_target,
        remedies: &[
            "on {following}: ALTER SYSTEM SET {target_setting} = ''; and restart it, if it is to follow: it \
             stays a standby and replays on",
            "on {restoring}: ALTER SYSTEM SET {target_setting} = ''; and restart it, if it is to follow and \
             its data folder has a file standby.signal; without that file it is promoted where its WAL ends",
            "nothing, if {node} is meant to stand there",
            "on {node}: SELECT pg_wal_replay_resume(); only if it is to follow no longer: once it is at its \
             target, that {resumed}",
        ],
    },
    Rule {
        cause: Cause::StandbySettingsTooLow,
        title: "settings of the standby are lower than the primary's: replay pauses",
        signal: paused::settings_too_low,
        remedies: &[
            "on {node}: {raise} and restart it: it stays a standby and replays on. pg_wal_replay_resume() \
             would stop it",
        ],
    },
    Rule {
        cause: Cause::ReplayDelayed,
        title: "replay is delayed on purpose",
        signal: replay::delayed,
        remedies: &[
            "on {node}: ALTER SYSTEM SET recovery_min_apply_delay = 0; SELECT pg_reload_conf(); (now \
             {recovery_min_apply_delay}), unless this standby is meant to be late",
        ],
    },
    Rule {
        cause: Cause::ReplayHalted,
        title: "the startup process does not run",
        signal: halted::replay,
        remedies: &[
            "on the machine of {node}: kill -CONT {stopped_pid}; a signal or a debugger has stopped that \
             process",
            "look at the startup process {pid} on {node} (ps, a debugger, dmesg): it has WAL to replay and \
             does nothing, and no view of the server says why",
            "restart {node} if nothing else helps: that ends its sessions, and it replays from its last \
             restartpoint again",
        ],
    },
    Rule {
        cause: Cause::RecoveryConflict,
        title: "replay waits for a query (recovery conflict)",
        signal: replay::conflict,
        remedies: &[
            "on {node}: SELECT pg_terminate_backend({pid}); if that query may be ended",
            "on {node}: lower {delay_setting} (now {delay}): queries that hold replay up for longer are then \
             cancelled",
            "let long queries run on a standby of their own; hot_standby_feedback = on avoids conflicts \
             over old rows, at the price of dead rows on the primary",
        ],
    },
    Rule {
        cause: Cause::CleanupLock,
        title: "replay waits for a page that a query pins (cleanup lock)",
        signal: replay::cleanup_lock,
        remedies: &[
            "on {node}: SELECT pg_terminate_backend({pid}); if that query may be ended; it has the oldest \
             transaction, so most likely an open cursor or scan on that page",
            "on {node}: lower {delay_setting} (now {delay})",
            "close cursors early: a cursor that is not read further keeps its page pinned",
        ],
    },
    Rule {
        cause: Cause::ReplayStarved,
        title: "replay does not get the CPU: {who} take it",
        signal: replay::starved,
        remedies: &[
            "on {stock_node}: Lockstep's extension: add lockstep to shared_preload_libraries (now \
             '{shared_preload_libraries}'), and restart it: replay goes first, and readers queue",
            "on {lockstep_node}: lockstep.enabled (now {lockstep.enabled}), lockstep.replay_priority (now \
             {lockstep.replay_priority}) and lockstep.read_throttle (now {lockstep.read_throttle}) have to \
             be on for replay to go first",
            "fewer queries at once on {read_node}: a pooler with a few connections for each core",
            "on {busy_node}: see what runs beside replay (top), and move it to other cores or another \
             machine",
            "more cores for {node}",
            "another standby for a part of the readers of {read_node}",
        ],
    },
    Rule {
        cause: Cause::ManySavepoints,
        title: "transactions with many savepoints",
        signal: replay::savepoints,
        remedies: &[
            "fewer than 64 savepoints (or PL/pgSQL blocks with EXCEPTION) in a transaction: beyond that \
             their transaction IDs no longer fit into shared memory",
            "shorter transactions: old ones make every lookup go further back",
        ],
    },
    Rule {
        cause: Cause::ReplayAtCoreLimit,
        title: "replay uses a whole core",
        signal: replay::core_limit,
        remedies: &[
            "less WAL: drop indexes that nobody uses, on standbys either, fillfactor below 100 for \
             tables with many updates, wal_compression, checkpoints further apart (max_wal_size)",
            "on {lockstep_node}: several processes that replay, lockstep.replay_workers (now \
             {lockstep.replay_workers}) with lockstep.replay_hot_standby (now \
             {lockstep.replay_hot_standby}); 'lockstep wal analyze' says how much of this WAL they can share",
            "on {stock_node}: Lockstep's extension, with which several processes can replay; \
             'lockstep wal analyze' says how much of this WAL they can share",
            "faster cores for {node}: more cores do not help with what the startup process does alone",
        ],
    },
    Rule {
        cause: Cause::ReplayWaitsForStorage,
        title: "replay waits for storage",
        signal: replay::storage,
        remedies: &[
            "on {node}: recovery_prefetch = try (now {recovery_prefetch}) and maintenance_io_concurrency \
             (now {maintenance_io_concurrency}) of 50 or more, so that reads overlap",
            "on {node}: more shared_buffers or memory, so that pages to be changed are in memory already",
            "on {lockstep_node}: several processes that replay, which wait for storage at the same \
             time, lockstep.replay_workers (now {lockstep.replay_workers}) with \
             lockstep.replay_hot_standby (now {lockstep.replay_hot_standby})",
            "on {stock_node}: Lockstep's extension, with which several processes can replay and \
             wait for storage at the same time",
            "faster storage for {node}",
        ],
    },
    halted::PROCESS,
    restarted::RULE,
    Rule {
        cause: Cause::TwoPrimaries,
        title: "{node} is a second primary of this cluster",
        signal: primaries::two,
        remedies: &[
            "let programs write to one of {node} and {upstream} only, and decide which of them is to go on; \
             its standbys must follow that one",
            "build the other anew from it as a standby (pg_rewind, pg_basebackup): what was written only \
             there is lost",
        ],
    },
    ended::RULE,
    Rule {
        cause: Cause::SlotTaken,
        title: "the {whose}'s slot is in use by {other}: it may be a clone",
        signal: unfed::slot_taken,
        remedies: &[
            "on {slot_maker}: SELECT pg_create_physical_replication_slot('{own_slot}', true); a slot of its own then keeps \
             WAL for {standby}; then as follows",
            "on {standby}: ALTER SYSTEM SET primary_slot_name = '{own_slot}'; SELECT pg_reload_conf(); it then streams, if \
             {slot_maker} still has the WAL that it needs",
            "on {standby}: ALTER SYSTEM SET primary_slot_name = ''; SELECT pg_reload_conf(); if it needs no slot: it then \
             streams without one",
            refused::GUESSED,
            "find {other}: if it is a copy of this subscriber, ALTER SUBSCRIPTION {subscription} DISABLE there, \
             and SET (slot_name = NONE) before it is dropped there",
            "on {server}: ALTER SUBSCRIPTION {subscription} DISABLE; {end_workers}; otherwise its worker takes the slot as \
             soon as it is free, and goes on behind what the other has confirmed",
            "on {upstream}: SELECT pg_drop_replication_slot('{taken_slot}'); it is refused as long as somebody uses the \
             slot; what the subscription has not received is lost with it, and copied by what follows: paste that \
             only once this is done",
            EMPTIES,
            SHARED,
            "on {server}: {recreate}; with the subconninfo that was shown, after that: it copies its tables again, \
             since it has lost the changes that the other has confirmed",
            UNCOPIED,
        ],
    },
    Rule {
        cause: Cause::SlotMissing,
        title: "the standby's slot on {upstream} {state}",
        signal: unfed::slot_missing,
        remedies: &[
            "on {upstream}: SELECT pg_create_physical_replication_slot('{missing_slot}', true); {node} then streams, \
             if {upstream} still has the WAL that it needs",
            "on {node}: ALTER SYSTEM SET primary_slot_name = ''; SELECT pg_reload_conf(); if it needs no slot",
        ],
    },
    unfed::REMOVED,
    unfed::ELSEWHERE,
    unfed::NOWHERE,
    Rule {
        cause: Cause::TimelineDiverged,
        title: "the standby's history is not that of {upstream}",
        signal: unfed::diverged,
        remedies: &[
            "if {node} has the newer data: let it, or the server that it followed, be the primary, and build \
             {upstream} anew",
            "stop {node}, run pg_rewind on its data folder with {upstream} as its source, and start it as a \
             standby: what only {node} has is lost. pg_rewind needs data checksums or wal_log_hints",
            "build {node} anew (pg_basebackup): what only {node} has is lost",
        ],
    },
    Rule {
        cause: Cause::RoleRefused,
        title: "role {role} may not stream",
        signal: refused::role,
        remedies: &[
            "on {primary}: ALTER ROLE {role} {lacking}; {node} then streams by itself",
            "on {server}: ALTER SUBSCRIPTION {subscription} CONNECTION '...' with a role of {primary} that has \
             LOGIN and REPLICATION; or create role {no_such_role} there, with these and the password that it had",
            "correct user in primary_conninfo of {node}, or create role {no_role} on {primary} with LOGIN and \
             REPLICATION and the password that {node} has",
        ],
    },
    Rule {
        cause: Cause::NoFreeWalsender,
        title: "{upstream} has no walsender left for it",
        signal: refused::no_walsender,
        remedies: &[
            "end what nobody needs of pg_stat_replication on {upstream}: backups, copies of tables, consumers",
            "on {upstream}: ALTER SYSTEM SET max_wal_senders = {more}; and restart it, after each of its \
             standbys has at least as many, since replay pauses on one with fewer. The restart ends all sessions",
        ],
    },
    Rule {
        cause: Cause::RestoreSlow,
        title: "restore_command is slower than the WAL",
        signal: unfed::restores_slowly,
        remedies: &[
            "on {node}: a restore_command that fetches several segments ahead and at once, as programs for \
             archives can; look at its machine and at the network to the archive",
            "let {node} stream what its upstream still has: primary_conninfo, and a slot there",
        ],
    },
    unfed::FAILS,
    ring::RULE,
    unasked::RULE,
    Rule {
        cause: Cause::NotStreaming,
        title: "the standby does not stream",
        signal: receive::not_streaming,
        remedies: &[
            "look at the log of {node} for what {address} answers: that may be {upstream} by another name or \
             address, or another server",
            "look at the log of {node}: primary_conninfo, its slot, a password, or WAL that the primary has \
             removed already",
            "on {node}: ALTER SYSTEM SET primary_conninfo = '{right_conninfo}'; SELECT pg_reload_conf(); if \
             {address} is not {upstream}",
        ],
    },
    Rule {
        cause: Cause::ReceiverHalted,
        title: "the walreceiver takes nothing",
        signal: halted::receiver,
        remedies: &[
            "on the machine of {node}: kill -CONT {stopped_pid}; a signal or a debugger has stopped that \
             process",
            "look at the walreceiver {pid} on {node} (ps, a debugger) and at the network to {upstream}: \
             nothing gets through, and the connection stays open",
            "on {node}: wal_receiver_timeout (now {wal_receiver_timeout}), on {upstream}: \
             wal_sender_timeout (now {wal_sender_timeout}): after that they connect again",
        ],
    },
    Rule {
        cause: Cause::SlowWalFlush,
        title: "the walreceiver waits for its disk",
        signal: receive::slow_flush,
        remedies: &[
            "faster or separate storage for pg_wal of {node}; look at what else writes to that disk",
            "if commits wait for it: synchronous_commit = remote_write waits for the standby's operating \
             system only; they are then lost if the machines of both fail at once",
        ],
    },
    Rule {
        cause: Cause::FullPageImages,
        title: "checkpoints fill the WAL with whole pages",
        signal: server::page_images,
        remedies: &[
            "on {upstream}: checkpoints further apart: checkpoint_timeout (now {checkpoint_timeout} s) and \
             max_wal_size (now {max_wal_size}); after each, the first change of a page writes all of \
             it. Recovery from a crash then takes longer",
            "on {upstream}: wal_compression = lz4 or on (now {wal_compression})",
        ],
    },
    Rule {
        cause: Cause::SlowNetwork,
        title: "the network between {upstream} and the replica is slower than the WAL",
        signal: receive::slow_network,
        remedies: &[
            "more bandwidth between {upstream} and the replica, or less on it: copies, backups, other \
             replicas",
            "less WAL: wal_compression = on, checkpoints further apart (max_wal_size)",
            "let replicas far away stream from one of them (cascading) rather than each from {upstream}",
        ],
    },
    connection::RULE,
    Rule {
        cause: Cause::SynchronousStandbyMissing,
        title: "commits wait for replicas that are not connected",
        signal: synchronous::missing,
        remedies: &[
            "in the relay's configuration: application_name = \"{behind_relay}\" in the [[group]] of that \
             subscription, and restart the relay: the primary cannot see a subscription behind it",
            "start what {node} waits for and does not see ({missing}), or let it connect with that \
             application_name: of a standby its cluster_name or primary_conninfo says it, of a subscription \
             it is its name",
            "on {node}: name replicas in synchronous_standby_names that are there, and reload",
            "on {node}: ALTER SYSTEM SET synchronous_standby_names = ''; SELECT pg_reload_conf(); all \
             commits that wait return at once, and are lost if {node} is lost before a replica has \
             them",
        ],
    },
    held::RULE,
    Rule {
        cause: Cause::AsynchronousApplyCommit,
        title: "the apply worker commits asynchronously: its flush waits for the WAL writer",
        signal: logical::asynchronous_commit,
        remedies: &[
            "on {server}: ALTER SUBSCRIPTION {subscription} SET (synchronous_commit = on); each transaction \
             is then flushed as it is applied",
            "on {server}, if that cannot be: wal_writer_delay = 10ms (now {wal_writer_delay}); it \
             counts for the whole server",
            "if commits need not survive a crash of both: synchronous_commit = remote_apply waits until \
             they are visible there, not until they are flushed",
        ],
    },
    Rule {
        cause: Cause::InitialSyncFails,
        title: "tables of the subscription are not copied, and their copy does not get on",
        signal: synchronised::fails,
        remedies: &[
            suspects::WIDEN,
            suspects::PARTITION,
            suspects::CATCH_ALL,
            suspects::AS_TEXT,
            suspects::RETYPE,
            "look at the log of {failing_node} for the error of the copy of {tables}, and correct what it \
             names: a row that is in the way, a column that is missing; the copy then begins anew by itself",
            "on {idle_node}: ALTER SYSTEM SET max_sync_workers_per_subscription = 2; SELECT pg_reload_conf(); a \
             worker then copies {tables}",
            "on {waiting_node}: max_logical_replication_workers (now {max_logical_replication_workers}) and \
             max_worker_processes (now {max_worker_processes}) must leave a worker for {tables}; a change \
             takes a restart. If workers are free, its log says why none copies",
        ],
    },
    lock::COPY,
    Rule {
        cause: Cause::SubscriptionSlotMissing,
        title: "slot {slot} of the subscription is not there",
        signal: refused::slot_missing,
        remedies: &[
            refused::GUESSED,
            "on {lacking_publisher}: create its publications first ({publications}), as they were",
            EMPTIES,
            SHARED,
            "on {server}: {recreate}; with the subconninfo that was shown: it makes the slot, and copies its tables",
            "on {publisher}: SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput'); the subscription then \
             goes on, and what was changed since the slot was dropped is lost there",
            UNCOPIED,
            "if {guessed} is its publisher, create slot {slot} there (pg_create_logical_replication_slot): what was \
             changed since it was dropped is lost. On another server such a slot keeps WAL for nobody",
        ],
    },
    unsuitable::RULE,
    Rule {
        cause: Cause::PublicationMissing,
        title: "publication {publication} is not there",
        signal: published::publication,
        remedies: &[
            "on {server}: ALTER SUBSCRIPTION {subscription} SET PUBLICATION {replacing}; if that has taken its \
             place: it has all tables that are followed",
            "on {publisher}: CREATE PUBLICATION {publication} FOR TABLE {its_tables}; if nothing was written to any \
             table of that database since it was dropped, and with the row filters and column lists that it had",
            EMPTIES,
            SHARED,
            "on {server}: {recreate}; with the subconninfo that was shown, once the publication is there again: before \
             PostgreSQL 18 a worker does not get past what was written while it was not",
            UNCOPIED,
        ],
    },
    renamed::RULE,
    unmade::RULE,
    lists::RULE,
    partitions::RULE,
    Rule {
        cause: Cause::ColumnsMissing,
        title: "published columns are {lack} at the subscriber",
        signal: published::columns,
        remedies: &[
            "on {server}: {rename} if that column was renamed on the publisher: its values stay",
            "types that {server} needs before that, if they are not there: {types}",
            "on {server}: {add} the worker then goes on by itself. In rows that are there already they are empty",
            "on {server}: {written} the worker then goes on by itself. Rows that are there already keep what was \
             generated, which may not be what the publisher has",
            "on {server}: {anew} the worker then goes on by itself. In rows that are there already they are empty",
            "publish the table without {generated}, by a column list, if the subscriber is to generate them",
        ],
    },
    keyless::RULE,
    unfilled::RULE,
    denied::RULE,
    refused::NO_WORKER,
    refused::SUBSCRIPTION,
    refused::OWNER,
    logical::STOPPED,
    Rule {
        cause: Cause::TablesNotPublished,
        title: "tables are left out of the publication: their rows differ more and more",
        signal: published::unpublished,
        remedies: &[
            "on {server}: ALTER SUBSCRIPTION {subscription} REFRESH PUBLICATION; if {absent_tables} were dropped \
             on the publisher: it then follows them no longer. If they were renamed there, rename them here",
            "on {publisher}: make {unlogged} logged (ALTER TABLE ... SET LOGGED), which writes them anew: no changes of \
             unlogged tables are sent. What was changed meanwhile is missing until they are copied again",
            "on {publisher}: ALTER PUBLICATION {publication} ADD TABLE {few_tables}; what was changed \
             meanwhile stays missing at the subscriber until the table is copied again",
            "on {publisher}: ALTER PUBLICATION ... ADD TABLE for {many_tables}; what was changed meanwhile \
             stays missing at the subscriber until the tables are copied again",
            "on {server}: ALTER SUBSCRIPTION {subscription} REFRESH PUBLICATION; if {left_out} are left out on \
             purpose: it then follows them no longer, and copies tables that are published and not followed",
        ],
    },
    Rule {
        cause: Cause::TablesNotFollowed,
        title: "published tables are not followed",
        signal: published::unfollowed,
        remedies: &[
            "on {server}: ALTER SUBSCRIPTION {subscription} REFRESH PUBLICATION; it copies {tables} and \
             follows them. They must be there and empty: a row that is there already doubles, or makes the \
             copy fail for ever",
        ],
    },
    followed_twice::RULE,
    Rule {
        cause: Cause::TablesUnlogged,
        title: "followed tables are unlogged: a crash of the subscriber empties them",
        signal: published::unlogged,
        remedies: &[
            "on {server}: {set_logged} which writes them anew. If the server has crashed since they were copied, their \
             rows must be copied again",
        ],
    },
    Rule {
        cause: Cause::NoReplicaIdentity,
        title: "updates or deletes of published tables are refused: no replica identity that suits",
        signal: published::refused,
        remedies: published::REFUSED_REMEDIES,
    },
    Rule {
        cause: Cause::ApplyBlocked,
        title: "the apply worker waits for a lock",
        signal: logical::blocked,
        remedies: lock::REMEDIES,
    },
    Rule {
        cause: Cause::SlowDecoding,
        title: "decoding is slow, for {scope}",
        signal: logical::decoding,
        remedies: &[
            "decode once for all subscribers: lockstep relay between {upstream} and them",
            "fewer slots on {upstream}: subscribers of the same publications can share one through a relay",
            "less WAL: decoding reads all of it, so publishing less does not help",
        ],
    },
    Rule {
        cause: Cause::GiantTransaction,
        title: "a giant transaction is decoded",
        signal: logical::giant,
        remedies: &[
            "on {server}: ALTER SUBSCRIPTION {subscription} SET (streaming = on); large transactions \
             are sent while they run (parallel from 16 on)",
            "smaller transactions: bulk changes in pieces of some 10,000 rows",
            "on {upstream}: more logical_decoding_work_mem (now {logical_decoding_work_mem} kB), for each \
             walsender",
        ],
    },
    Rule {
        cause: Cause::SpillToDisk,
        title: "decoding writes transactions to disk",
        signal: logical::spill,
        remedies: &[
            "on {upstream}: more logical_decoding_work_mem (now {logical_decoding_work_mem} kB), for each \
             walsender",
            "on {server}: ALTER SUBSCRIPTION {subscription} SET (streaming = on); large transactions \
             are sent while they run",
        ],
    },
    Rule {
        cause: Cause::MissingIndex,
        title: "an index is missing: the apply worker searches whole tables for each change",
        signal: logical::missing_index,
        remedies: &[
            "on {server}: give {table} the primary key that it has on the publisher",
            "on {server}, if there is none: a unique index on columns that are NOT NULL, and ALTER \
             TABLE {table} REPLICA IDENTITY USING INDEX; from 16 on any btree index on all rows will do",
        ],
    },
    unconfirmed::RULE,
    consumer::RULE,
    Rule {
        cause: Cause::RelayHalted,
        title: "{relay} is connected and does nothing",
        signal: halted::relay,
        remedies: &[
            "on the machine of {relay}: look at the process of lockstep relay (ps, a debugger): if its \
             state is T, a signal has stopped it: kill -CONT",
            "restart {relay} if nothing else helps: it goes on from its spool, and its subscribers connect \
             again",
        ],
    },
    Rule {
        cause: Cause::RelayNotStreaming,
        title: "the relay's group does not stream",
        signal: relay::not_streaming,
        remedies: &[
            "let {relay} reach the primary for group {connecting}: network, password, pg_hba.conf, a free \
             walsender and slot; SHOW UPSTREAM and the relay's log show the primary's answer",
            "make room for group {waiting} on the disk of the spool of {relay}",
            "decide what becomes of group {failed}: docs/relay.md, When the primary fails over, says what \
             each reason means; its subscriptions may have to be synchronized again",
            "look at the log of {relay}, and at SHOW UPSTREAM in its console",
        ],
    },
    Rule {
        cause: Cause::RelaySpoolNearLimit,
        title: "the relay's spool is nearly full",
        signal: relay::spool,
        remedies: &[
            "let the subscriber of slot {slot} run and catch up: the spool keeps what it has not confirmed",
            "in the configuration of {relay}: raise spool_limit (now {spool_limit}) if the disk has room, \
             and RELOAD",
            "in the console of {relay}: DROP SLOT {slot} if nobody needs it: its subscription must then be \
             synchronized again",
        ],
    },
    Rule {
        cause: Cause::RelayReadsFromDisk,
        title: "the backlog is beyond the relay's cache: it is served from disk",
        signal: relay::from_disk,
        remedies: &[
            "in the configuration of {relay}: logical_wal_cache (now {cache_limit}) larger than what this \
             subscriber falls behind, and RELOAD",
            "find why it falls behind: an apply worker that is busy or blocked makes the backlog, and \
             memory only hides it",
            "faster storage for the spool of {relay}",
        ],
    },
    Rule {
        cause: Cause::ReplicaStopped,
        title: "the replica does not apply: {why}",
        signal: replica::stopped,
        remedies: &[
            "repair what the error names on {node}: replica {blocked} goes on within 10 s, and at once after \
             lockstep replica resume {blocked} --target '{target}'",
            "let the sessions that the error names end their transactions on {node}; replica {waiting} then \
             goes on by itself. SELECT pg_terminate_backend(PID) ends one, and what it wrote is lost",
            "let the process of replica {connecting} reach the server that the error names: network, \
             password, pg_hba.conf, a free walsender; it goes on by itself",
            "do what the error says for replica {ended}; of a slot with a gap: lockstep replica drop \
             {ended} --target '{target}', and create it again",
            "start its process again: lockstep replica run {away} --target '{target}', or the unit \
             lockstep-replica",
        ],
    },
    Rule {
        cause: Cause::ReplicaPaused,
        title: "the replica is paused",
        signal: replica::paused,
        remedies: &[
            "lockstep replica resume {replica} --target '{target}'; until then its slot keeps WAL",
            "start its process as well: lockstep replica run {away} --target '{target}', or the unit \
             lockstep-replica",
        ],
    },
    Rule {
        cause: Cause::ReplicaNotRunning,
        title: "no process works on the replica",
        signal: replica::not_running,
        remedies: &[
            "start it: lockstep replica run {away} --target '{target}', or the unit lockstep-replica; its log says \
             why it ended",
            "run lockstep replica create {uncopied} again: it goes on where it was",
            "lockstep replica drop {unneeded} --target '{target}'; if nobody needs it: until then its slot keeps WAL",
        ],
    },
    spool_full::RULE,
    Rule {
        cause: Cause::ReplicaSilent,
        title: "the replica's process is connected and does nothing",
        signal: replica::silent,
        remedies: &[
            "look at the process of lockstep replica run {replica} (ps, a debugger): if its state is T, a \
             signal has stopped it: kill -CONT",
            "if its machine is gone: the server ends its session after tcp_keepalives_idle; then start the \
             replica elsewhere",
        ],
    },
    Rule {
        cause: Cause::ReplicaHeld,
        title: "the replica stands still for lockstep replica verify",
        signal: replica::held,
        remedies: &[
            "let transactions end that are open on {upstream}: verify waits for them before changes flow \
             again",
            "on {node}: SELECT pg_terminate_backend({pid}); that ends verify, and changes flow again",
        ],
    },
    Rule {
        cause: Cause::ReplicaRowsMissing,
        title: "the replica lacked rows that its source changed",
        signal: replica::missing_rows,
        remedies: &[
            "lockstep replica verify {replica} --target '{target}'; it names the rows that differ, and lockstep \
             replica status says in which tables rows were missing",
            "lockstep replica drop {replica} --target '{target}'; and create it again; let nobody else write to its \
             tables",
        ],
    },
    Rule {
        cause: Cause::ReplicaIncomplete,
        title: "the replica lacks tables or objects of its source",
        signal: replica::incomplete,
        remedies: &[
            "do what the evidence names (lockstep replica status {replica} --target '{target}' prints the commands \
             for what the copy could not make); for other tables: lockstep replica drop {replica} --target \
             '{target}', and create it again, so that it copies them",
        ],
    },
    Rule {
        cause: Cause::ReplicaCopying,
        title: "the replica is being copied",
        signal: replica::copying,
        remedies: &[],
    },
    Rule {
        cause: Cause::RetainedWalNearLimit,
        title: "a slot keeps nearly as much WAL as it may",
        signal: standing::retained,
        remedies: &[
            "let the consumer of slot {slot} run and catch up",
            "on {upstream}: ALTER SYSTEM SET max_slot_wal_keep_size = '{twice}MB'; SELECT pg_reload_conf(); \
             (now {max_slot_wal_keep_size}), if the disk of pg_wal has room",
            "lockstep replica drop {lockstep_replica}, on its target, if nobody needs it",
            "on {upstream}: SELECT pg_drop_replication_slot('{unowned_slot}'); only if nobody needs it: its \
             consumer loses what it has not received, and must be set up again",
        ],
    },
    Rule {
        cause: Cause::SlotLost,
        title: "slot {slot} has lost WAL that its consumer needs",
        signal: standing::lost,
        remedies: &[
            refused::GUESSED,
            EMPTIES,
            SHARED,
            "on {server}: {recreate}; with the subconninfo that was shown: it makes the slot anew, and copies its tables",
            UNCOPIED,
            "set up the consumer of slot {slot} again, with a new slot: a base backup, or a subscription that \
             copies its tables. A standby with a restore_command may have that WAL from an archive",
            "lockstep replica drop {lockstep_replica}, on its target, if nobody needs it",
            "on {upstream}: SELECT pg_drop_replication_slot('{unowned_slot}'); only if nobody needs it: its \
             consumer loses what it has not received, and must be set up again",
        ],
    },
    gone::RULE,
    gone::LEFT,
    Rule {
        cause: Cause::UnusedSlot,
        title: "a slot keeps WAL and nobody uses it",
        signal: standing::unused,
        remedies: &[
            "start the consumer of slot {idle_slot}",
            "look on its target why replica {lockstep_replica} does not run: lockstep replica status, or \
             name the target with --subscriber",
            "on its target: lockstep replica drop {promoted}, which removes the slot; first bring over by hand \
             what the source has committed since, if the target needs it",
            "on its target: lockstep replica drop {lockstep_replica}, if nobody needs it",
            "on {upstream}: set max_slot_wal_keep_size (now {max_slot_wal_keep_size}) to more \
             than the {kept} that it keeps, so that a slot cannot fill the disk: one that keeps more is lost",
            "in the configuration of {relay}: set spool_limit, so that a slot cannot fill the disk",
            "on {upstream}: SELECT pg_drop_replication_slot('{unowned_slot}'); only if nobody needs it: its \
             consumer loses what it has not received, and must be set up again",
            "in the console of {relay}: DROP SLOT {unowned_slot}; only if nobody needs it: its subscription \
             must then be synchronized again",
        ],
    },
    Rule {
        cause: Cause::ArchiverFailing,
        title: "WAL is not archived",
        signal: server::archiver_failing,
        remedies: &[
            "look on {hanging} at the archiver's process and at the command that it runs (ps): it does \
             not end, or is too slow for the WAL, or archive_command is empty",
            "look at the log of {node} for what archive_command or archive_library says about {segment}, \
             and correct that: until then pg_wal grows, and the archive cannot restore anything newer",
            "watch the disk of pg_wal on {node}: if it fills up, {node} stops. Delete nothing in pg_wal by \
             hand: {node} is then lost if it crashes",
        ],
    },
    unarchived::RULE,
    Rule {
        cause: Cause::QueriesCancelled,
        title: "replay cancels queries",
        signal: server::queries_cancelled,
        remedies: &[
            "on {without_feedback}: ALTER SYSTEM SET hot_standby_feedback = on; SELECT pg_reload_conf(); the \
             primary then keeps the rows that queries need, which costs dead rows there",
            "on {node}: ALTER SYSTEM SET {delay_setting} = '{longer}ms'; SELECT \
             pg_reload_conf(); (now {delay}): replay then waits for \
             queries, so the standby lags",
            "let long queries run on a standby of their own",
        ],
    },
    Rule {
        cause: Cause::PreparedTransaction,
        title: "a prepared transaction is never ended",
        signal: horizon::prepared,
        remedies: &[
            "let the program that prepared '{gid}' end it: a transaction manager knows whether it was committed \
             elsewhere",
            lock::APPLIED,
            "on {node}, in database {database}: COMMIT PREPARED '{gid}'; if the other parts of it were \
             committed",
            "on {node}, in database {database}: ROLLBACK PREPARED '{gid}'; if they were not: what it wrote \
             is lost",
        ],
    },
    Rule {
        cause: Cause::OldTransaction,
        title: "an old transaction keeps WAL of slots, or dead rows",
        signal: horizon::old_transaction,
        remedies: &[
            "on {node}: SELECT pg_terminate_backend({reader_pid}); if that transaction may be ended: it has \
             written nothing",
            "let process {pid} on {node} end its transaction; limits end the next one: \
             idle_in_transaction_session_timeout, statement_timeout",
            "on {node}: SELECT pg_terminate_backend({writer_pid}); if that transaction may be ended: what it \
             wrote is lost",
        ],
    },
    Rule {
        cause: Cause::FeedbackBloat,
        title: "a replica's old snapshot keeps dead rows on its upstream",
        signal: standing::bloat,
        remedies: &[
            "on {node}: SELECT pg_terminate_backend({pid}); if that query may be ended",
            "on {node}: hot_standby_feedback = off, if its long queries may be cancelled instead",
            "limit transactions on the replica: statement_timeout, idle_in_transaction_session_timeout",
        ],
    },
    left::RULE,
    machine::CHECKSUMS,
    machine::COLLATIONS,
    partial::RULE,
    Rule {
        cause: Cause::OtherDatabases,
        title: "WAL of other databases or tables; nothing is missing here",
        signal: standing::other_databases,
        remedies: &[],
    },
    Rule {
        cause: Cause::IdlePrimary,
        title: "nothing is written on the primary; all of it is replayed",
        signal: standing::idle,
        remedies: &[],
    },
];
