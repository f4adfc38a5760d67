//! What the console shows: columns, and rows made from a snapshot.

use lockstep_service::words::date;
use lockstep_wire::Lsn;
use lockstep_wire::backend::{Backend, Column, INT4, INT8, TEXT};

use super::statement::{Show, Statement};
use crate::serve::{PG_LSN, TIMESTAMPTZ};
use crate::stats::{ClientStat, GroupStat, SlotStat};

pub(super) type ListingRow = Vec<Option<String>>;

const fn column(name: &'static str, kind: u32) -> Column<'static> {
    Column { name, kind }
}

/// Columns of `lockstep_stat_logical_wal_cache()`.
pub const STATISTICS_COLUMNS: [Column<'static>; 7] = [
    column("name", TEXT),
    column("active_pid", INT4),
    column("cache_hit", INT8),
    column("cache_miss", INT8),
    column("blks_read", INT8),
    column("hit_rate", TEXT),
    column("last_reset_timestamp", TIMESTAMPTZ),
];

pub const SLOT_COLUMNS: [Column<'static>; 13] = [
    column("name", TEXT),
    column("database", TEXT),
    column("group", TEXT),
    column("active_pid", INT4),
    column("sent_lsn", PG_LSN),
    column("confirmed_lsn", PG_LSN),
    column("behind_bytes", INT8),
    column("cache_hit", INT8),
    column("cache_miss", INT8),
    column("hit_rate", TEXT),
    column("written_lsn", PG_LSN),
    column("applied_lsn", PG_LSN),
    column("reason", TEXT),
];

pub const CLIENT_COLUMNS: [Column<'static>; 9] = [
    column("id", INT8),
    column("pid", INT4),
    column("user", TEXT),
    column("database", TEXT),
    column("application_name", TEXT),
    column("address", TEXT),
    column("state", TEXT),
    column("slot", TEXT),
    column("since", TIMESTAMPTZ),
];

pub const UPSTREAM_COLUMNS: [Column<'static>; 14] = [
    column("group", TEXT),
    column("slot", TEXT),
    column("database", TEXT),
    column("publications", TEXT),
    column("plugin", TEXT),
    column("state", TEXT),
    column("reason", TEXT),
    column("primary", TEXT),
    column("sent_lsn", PG_LSN),
    column("received_lsn", PG_LSN),
    column("durable_lsn", PG_LSN),
    column("transactions", INT8),
    column("received_bytes", INT8),
    column("committed_lsn", PG_LSN),
];

pub const SPOOL_COLUMNS: [Column<'static>; 8] = [
    column("group", TEXT),
    column("oldest_spooled_lsn", PG_LSN),
    column("oldest_cached_lsn", PG_LSN),
    column("durable_lsn", PG_LSN),
    column("spool_bytes", INT8),
    column("spool_limit_bytes", INT8),
    column("cache_bytes", INT8),
    column("cache_limit_bytes", INT8),
];

pub const CONFIG_COLUMNS: [Column<'static>; 3] = [
    column("name", TEXT),
    column("value", TEXT),
    column("source", TEXT),
];

pub(super) const RELOAD_COLUMNS: [Column<'static>; 1] = [column("change", TEXT)];

pub(super) const HELP_COLUMNS: [Column<'static>; 2] =
    [column("command", TEXT), column("description", TEXT)];

/// What `SHOW HELP` says.
const HELP: [[&str; 2]; 13] = [
    [
        "SELECT * FROM lockstep_stat_logical_wal_cache()",
        "blocks of 8 kB that each slot read from memory and from the spool; \
         columns, WHERE name = 'slot' and ORDER BY may be given",
    ],
    [
        "SELECT lockstep_stat_reset_wal_cache('slot')",
        "reset a slot's statistics, or all with NULL; changes need a superuser or admin_role",
    ],
    [
        "SELECT get_oldest_wal_cache_ptr()",
        "oldest position in memory over all groups; null if memory is empty",
    ],
    ["SHOW SLOTS", "slots of subscribers and how far they are"],
    ["SHOW CLIENTS", "sessions"],
    [
        "SHOW UPSTREAM",
        "groups and their connections to the primary",
    ],
    ["SHOW SPOOL", "what is kept in memory and on disk"],
    [
        "SHOW CONFIG",
        "configuration in force and where it comes from",
    ],
    ["SHOW VERSION", "the relay's version"],
    ["SHOW HELP", "this list"],
    [
        "DROP SLOT name",
        "drop a subscriber's slot; needs a superuser or admin_role",
    ],
    [
        "TERMINATE id",
        "end a session of SHOW CLIENTS; needs a superuser or admin_role",
    ],
    [
        "RELOAD",
        "read the configuration again; needs a superuser or admin_role",
    ],
];

/// `99.98%`: blocks from memory among all, never rounded up; None before the first block.
pub fn hit_rate(slot: &SlotStat) -> Option<String> {
    let all = u128::from(slot.cache_hit) + u128::from(slot.cache_miss);
    let rate = (u128::from(slot.cache_hit) * 10_000).checked_div(all)?;
    Some(format!("{}.{:02}%", rate / 100, rate % 100))
}

pub(super) fn statistics(slot: &SlotStat) -> ListingRow {
    vec![
        Some(slot.name.clone()),
        slot.active_pid.map(pid),
        Some(slot.cache_hit.to_string()),
        Some(slot.cache_miss.to_string()),
        Some(slot.cache_hit.saturating_add(slot.cache_miss).to_string()),
        hit_rate(slot),
        time(slot.last_reset_unix_us),
    ]
}

pub(super) fn slot(slot: &SlotStat) -> ListingRow {
    vec![
        Some(slot.name.clone()),
        Some(slot.database.clone()),
        Some(slot.group.clone()),
        slot.active_pid.map(pid),
        position(slot.sent),
        position(slot.confirmed),
        Some(slot.behind_bytes.to_string()),
        Some(slot.cache_hit.to_string()),
        Some(slot.cache_miss.to_string()),
        hit_rate(slot),
        position(slot.written),
        position(slot.applied),
        text(&slot.reason),
    ]
}

pub(super) fn client(client: &ClientStat) -> ListingRow {
    vec![
        Some(client.id.to_string()),
        Some(pid(client.pid)),
        Some(client.user.clone()),
        Some(client.database.clone()),
        text(&client.application_name),
        text(&client.address),
        Some(client.state.name().to_owned()),
        text(&client.slot),
        time(client.since_unix_us),
    ]
}

pub(super) fn upstream(group: &GroupStat) -> ListingRow {
    vec![
        Some(group.name.clone()),
        Some(group.upstream_slot.clone()),
        Some(group.database.clone()),
        Some(group.publications.join(",")),
        Some(group.plugin.clone()),
        Some(group.state.name().to_owned()),
        text(&group.reason),
        text(&group.primary),
        position(group.sent),
        position(group.received),
        position(group.durable),
        Some(group.transactions.to_string()),
        Some(group.received_bytes.to_string()),
        position(group.committed),
    ]
}

pub(super) fn spool(group: &GroupStat) -> ListingRow {
    vec![
        Some(group.name.clone()),
        position(group.oldest_spooled),
        position(group.oldest_cached),
        position(group.durable),
        Some(group.spool_bytes.to_string()),
        Some(group.spool_limit_bytes.to_string()),
        Some(group.cache_bytes.to_string()),
        Some(group.cache_limit_bytes.to_string()),
    ]
}

pub(super) fn help() -> Vec<ListingRow> {
    HELP.iter()
        .map(|row| row.iter().map(|&text| Some(text.to_owned())).collect())
        .collect()
}

/// Columns of a statement's answer; none if it returns no rows.
pub(super) fn columns(statement: &Statement) -> Vec<Column<'static>> {
    match statement {
        Statement::Acknowledge(_)
        | Statement::Transaction(_)
        | Statement::DropSlot(_)
        | Statement::Terminate(_) => Vec::new(),
        Statement::Number(_) => vec![column("?column?", INT4)],
        Statement::SelectVersion | Statement::Show(Show::Version) => vec![column("version", TEXT)],
        Statement::Statistics(wanted) => {
            let places = wanted.columns.iter();
            let chosen = places.filter_map(|&at| STATISTICS_COLUMNS.get(at));
            chosen.copied().collect()
        }
        Statement::Reset(_) => vec![column("lockstep_stat_reset_wal_cache", TEXT)],
        Statement::OldestPointer => vec![column("get_oldest_wal_cache_ptr", PG_LSN)],
        Statement::Show(Show::Slots) => SLOT_COLUMNS.to_vec(),
        Statement::Show(Show::Clients) => CLIENT_COLUMNS.to_vec(),
        Statement::Show(Show::Upstream) => UPSTREAM_COLUMNS.to_vec(),
        Statement::Show(Show::Spool) => SPOOL_COLUMNS.to_vec(),
        Statement::Show(Show::Config) => CONFIG_COLUMNS.to_vec(),
        Statement::Show(Show::Help) => HELP_COLUMNS.to_vec(),
        Statement::Reload => RELOAD_COLUMNS.to_vec(),
    }
}

/// Numbers and rates are compared as numbers.
pub(super) fn sorts_as_number(column: &Column<'_>) -> bool {
    matches!(column.kind, INT4 | INT8) || column.name == "hit_rate"
}

/// Appends columns, rows and a command tag.
pub(super) fn put(out: &mut Vec<u8>, columns: &[Column<'_>], rows: &[ListingRow], tag: &str) {
    Backend::RowDescription(columns.to_vec()).encode(out);
    for row in rows {
        let values = row
            .iter()
            .map(|value| value.as_deref().map(str::as_bytes))
            .collect();
        Backend::DataRow(values).encode(out);
    }
    Backend::CommandComplete(tag).encode(out);
}

/// Appends one value in one column.
pub(super) fn put_value(
    out: &mut Vec<u8>,
    name: &'static str,
    kind: ColumnKind,
    value: Option<String>,
    tag: &str,
) {
    let kind = match kind {
        ColumnKind::Text => TEXT,
        ColumnKind::Number => INT4,
        ColumnKind::Position => PG_LSN,
    };
    put(out, &[column(name, kind)], &[vec![value]], tag);
}

/// Types of single values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ColumnKind {
    Text,
    Number,
    Position,
}

/// A process number as clients know it: four bytes with a sign.
fn pid(pid: u32) -> String {
    (pid as i32).to_string()
}

/// A position; null if there is none.
pub(super) fn position(lsn: Lsn) -> Option<String> {
    lsn.is_valid().then(|| lsn.to_string())
}

/// Text; null if there is none.
fn text(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// A time; null if it has not been.
fn time(unix_us: i64) -> Option<String> {
    (unix_us != 0).then(|| date::timestamptz(unix_us))
}
