//! The SQL that primary and node are asked, and their answers.

use std::time::Duration;

use lockstep_client::connection::Rows;
use lockstep_client::{ClientError, Result, field};
use lockstep_wire::{Lsn, SystemId, Timeline};

use crate::contest::Instance;
use crate::judge::{NodeAnswer, PrimaryAnswer, Supply};
use crate::staleness::Position;
use crate::weight::Load;

/// Asked once in a session: the cluster, how long the server has been running, whether the role sees enough,
/// and whether it may end sessions.
pub const SESSION: &str = "SELECT system_identifier, \
     extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::float8, \
     pg_has_role('pg_monitor', 'USAGE'), current_user, \
     (SELECT setting::int8 FROM pg_settings WHERE name = 'wal_segment_size'), \
     (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::int8, \
     pg_has_role('pg_signal_backend', 'USAGE') \
     FROM pg_control_system()";

/// Asked of each server that may be the primary: the flush position, and the timeline that it writes.
pub const PRIMARY: &str = "SELECT pg_is_in_recovery(), \
     CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_flush_lsn() END, \
     CASE WHEN NOT pg_is_in_recovery() \
          THEN left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END";

/// Asked of a server that has answered [`PRIMARY`] as one that takes writes. Such a server stays one, on the
/// timeline that it named, as long as the session lasts, since only a restart makes it a standby.
pub const FLUSHED: &str = "SELECT pg_current_wal_flush_lsn()";

/// Asked of the node each interval.
pub const NODE: &str = "SELECT s.standby, \
     CASE WHEN s.standby THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END, \
     CASE WHEN s.standby THEN pg_last_wal_receive_lsn() END, \
     CASE WHEN s.standby THEN CASE r.status WHEN 'streaming' THEN r.received_tli::text END \
          ELSE left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END, \
     CASE WHEN s.standby THEN pg_get_wal_replay_pause_state() <> 'not paused' ELSE false END, \
     r.status, current_setting('primary_conninfo') <> '', current_setting('restore_command') <> '' \
     FROM (SELECT pg_is_in_recovery() AS standby) AS s LEFT JOIN pg_stat_wal_receiver AS r ON true";

/// Asked of the node now and then in place of [`NODE`]: also its sessions, and how many ordinary roles may
/// have.
pub fn node_and_load() -> String {
    format!(
        "SELECT n.*, (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'), \
         current_setting('max_connections')::int4 \
         - current_setting('superuser_reserved_connections')::int4 \
         - coalesce(current_setting('reserved_connections', true)::int4, 0) \
         FROM ({NODE}) AS n"
    )
}

/// Columns of [`NODE`], behind which the load comes.
const LOAD_AT: usize = 8;

/// Ends sessions of ordinary roles that are older than this and idle, the longest idle first: one in a
/// hundred of all sessions, and one at least. A session in a transaction is not idle.
pub fn end_old(age: Duration) -> String {
    format!(
        "SELECT count(*) FILTER (WHERE pg_terminate_backend(old.pid)) FROM ( \
         SELECT a.pid FROM pg_stat_activity AS a JOIN pg_roles AS r ON r.oid = a.usesysid \
         WHERE a.backend_type = 'client backend' AND a.state = 'idle' \
         AND NOT r.rolsuper AND r.rolname <> current_user \
         AND a.backend_start < clock_timestamp() - interval '{} ms' \
         ORDER BY a.state_change LIMIT (SELECT greatest(1, count(*) / 100) \
         FROM pg_stat_activity WHERE backend_type = 'client backend')) AS old",
        age.as_millis()
    )
}

/// How many were ended.
pub fn read_ended(rows: &Rows) -> Result<u64> {
    field(row(rows)?, 0)
}

/// Asked of the primary while the node does not stream: the oldest segment, without its timeline.
pub const OLDEST: &str =
    "SELECT min(substr(name, 9)) FROM pg_ls_waldir() WHERE name ~ '^[0-9A-F]{24}$'";

/// What a server says at a session's begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionFacts {
    pub system: SystemId,
    pub up_for: Duration,
    pub sees_all: bool,
    pub role: String,
    pub segment_bytes: u64,
    pub instance: Instance,
    /// Whether the role may end sessions of ordinary roles.
    pub may_end: bool,
}

/// The one row of an answer.
fn row(rows: &Rows) -> Result<&[Option<String>]> {
    match rows.as_slice() {
        [row] => Ok(row),
        _ => Err(ClientError::Protocol(format!(
            "{} rows, not one",
            rows.len()
        ))),
    }
}

fn hexadecimal(text: &str) -> Option<Timeline> {
    u32::from_str_radix(text, 16).ok().and_then(Timeline::new)
}

impl SessionFacts {
    pub fn read(rows: &Rows) -> Result<Self> {
        let row = row(rows)?;
        // The identifier is a signed number there.
        let system: i64 = field(row, 0)?;
        Ok(Self {
            system: u64::from_ne_bytes(system.to_ne_bytes()).into(),
            up_for: Duration::try_from_secs_f64(field(row, 1)?).unwrap_or_default(),
            sees_all: field(row, 2)?,
            role: field(row, 3)?,
            segment_bytes: field(row, 4)?,
            instance: Instance(field(row, 5)?),
            may_end: field(row, 6)?,
        })
    }
}

/// The answer of a server that may be the primary, without its history; None if it is a standby.
pub fn read_primary(rows: &Rows, facts: &SessionFacts) -> Result<Option<PrimaryAnswer>> {
    let row = row(rows)?;
    if field(row, 0)? {
        return Ok(None);
    }
    let timeline: String = field(row, 2)?;
    let timeline = hexadecimal(&timeline)
        .ok_or_else(|| ClientError::Protocol("the timeline is no number".to_owned()))?;
    Ok(Some(PrimaryAnswer {
        system: facts.system,
        instance: facts.instance,
        history: None,
        flushed: Position {
            timeline,
            lsn: field(row, 1)?,
        },
    }))
}

/// The flush position.
pub fn read_flushed(rows: &Rows) -> Result<Lsn> {
    field(row(rows)?, 0)
}

/// What is known of the node from before.
#[derive(Debug, Clone, Copy)]
pub struct NodeFacts {
    pub system: SystemId,
    pub instance: Instance,
    pub up_for: Duration,
    /// The node's load when it was last asked for.
    pub load: Option<Load>,
    /// Where the primary's oldest WAL begins, if it was asked.
    pub oldest: Option<Lsn>,
}

/// The node's answer, without its history.
pub fn read_node(rows: &Rows, facts: &NodeFacts) -> Result<NodeAnswer> {
    let row = row(rows)?;
    let is_standby: bool = field(row, 0)?;
    let shown: Option<Lsn> = field(row, 1)?;
    let received: Option<Lsn> = field(row, 2)?;
    let timeline: Option<String> = field(row, 3)?;
    let timeline = timeline.and_then(|text| match is_standby {
        true => text.parse().ok(),
        false => hexadecimal(&text),
    });
    let receiver: Option<String> = field(row, 5)?;
    let (streams, restores): (bool, bool) = (field(row, 6)?, field(row, 7)?);
    let shown = shown.unwrap_or_default();
    let has = received.unwrap_or_default().max(shown);
    let supply = match receiver.as_deref() {
        Some("streaming") => Supply::Streaming,
        Some(_) => Supply::NotStreaming,
        None if !streams && !restores => Supply::NoUpstream,
        None if !streams => Supply::Archive,
        // What it replays beyond what it has received came from the archive.
        None if restores && received.is_none_or(|received| shown > received) => Supply::Archive,
        None if facts.oldest.is_some_and(|oldest| has < oldest) => Supply::WalRemoved,
        None => Supply::NotStreaming,
    };
    Ok(NodeAnswer {
        system: facts.system,
        instance: facts.instance,
        history: None,
        is_standby,
        shown,
        received,
        timeline,
        supply,
        is_paused: field(row, 4)?,
        up_for: facts.up_for,
        load: match row.len() > LOAD_AT {
            true => Some(Load {
                sessions: field(row, LOAD_AT)?,
                most: field(row, LOAD_AT + 1)?,
            }),
            false => facts.load,
        },
    })
}

/// Where the oldest segment begins.
pub fn read_oldest(rows: &Rows, segment_bytes: u64) -> Result<Option<Lsn>> {
    let name: Option<String> = field(row(rows)?, 0)?;
    let begin = name.and_then(|name| {
        let part = |range| u64::from_str_radix(name.get(range)?, 16).ok();
        let (log, segment) = (part(0..8)?, part(8..16)?);
        Some(Lsn::from((log << 32) + segment.checked_mul(segment_bytes)?))
    });
    Ok(begin)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(fields: &[Option<&str>]) -> Rows {
        vec![fields.iter().map(|text| text.map(str::to_owned)).collect()]
    }

    fn facts() -> NodeFacts {
        NodeFacts {
            system: 7.into(),
            instance: Instance(1),
            up_for: Duration::ZERO,
            load: None,
            oldest: Some("0/2000000".parse().unwrap()),
        }
    }

    fn supply(receiver: Option<&str>, received: &str, streams: &str, restores: &str) -> Supply {
        let shown = Some("0/3000000");
        let received = Some(received).filter(|text| !text.is_empty());
        let row = [
            Some("t"),
            shown,
            received,
            None,
            Some("f"),
            receiver,
            Some(streams),
            Some(restores),
        ];
        read_node(&rows(&row), &facts()).unwrap().supply
    }

    #[test]
    fn the_supply_is_told_apart() {
        let at = "0/3000000";
        assert_eq!(supply(Some("streaming"), at, "t", "t"), Supply::Streaming);
        assert_eq!(supply(Some("waiting"), at, "t", "t"), Supply::NotStreaming);
        assert_eq!(supply(None, at, "t", "f"), Supply::NotStreaming);
        assert_eq!(supply(None, at, "t", "t"), Supply::NotStreaming);
        assert_eq!(supply(None, "0/2000000", "t", "t"), Supply::Archive);
        assert_eq!(supply(None, "", "t", "t"), Supply::Archive);
        assert_eq!(supply(None, at, "f", "t"), Supply::Archive);
        assert_eq!(supply(None, at, "f", "f"), Supply::NoUpstream);
    }

    #[test]
    fn wal_that_is_gone_is_noticed() {
        let row = [
            Some("t"),
            Some("0/1FFFFFF"),
            None,
            None,
            Some("t"),
            None,
            Some("t"),
            Some("f"),
        ];
        let answer = read_node(&rows(&row), &facts()).unwrap();
        assert_eq!(
            (answer.supply, answer.is_paused),
            (Supply::WalRemoved, true)
        );
        let oldest = |name: Option<&str>| read_oldest(&rows(&[name]), 16 << 20).unwrap();
        assert_eq!(
            oldest(Some("0000000100000002")),
            Some(Lsn::from((1 << 32) + (2 << 24)))
        );
        assert_eq!(oldest(Some("00000001")), None);
        assert_eq!(oldest(None), None);
    }

    #[test]
    fn primaries_say_their_timeline() {
        let row = [Some("f"), Some("0/10"), Some("0000000A")];
        let said = [
            Some("7"),
            Some("0"),
            Some("t"),
            Some("u"),
            Some("1"),
            Some("2"),
            Some("f"),
        ];
        let session = SessionFacts::read(&rows(&said)).unwrap();
        let answer = read_primary(&rows(&row), &session).unwrap().unwrap();
        assert_eq!(answer.flushed.timeline.get(), 10);
        let standby = rows(&[Some("t"), None, None]);
        assert_eq!(read_primary(&standby, &session).unwrap(), None);
        assert!(read_primary(&Vec::new(), &session).is_err());
        let written = [
            Some("f"),
            Some("0/10"),
            None,
            Some("00000003"),
            Some("f"),
            None,
            Some("f"),
            Some("f"),
        ];
        let answer = read_node(&rows(&written), &facts()).unwrap();
        assert_eq!((answer.timeline, answer.load), (Timeline::new(3), None));
        let with_load = [&written[..], &[Some("5"), Some("97")]].concat();
        let answer = read_node(&rows(&with_load), &facts()).unwrap();
        let (sessions, most) = (5, 97);
        assert_eq!(answer.load, Some(Load { sessions, most }));
    }

    #[test]
    fn identifiers_beyond_the_signed_numbers_are_read() {
        let row = [
            Some("-1"),
            Some("1.5"),
            Some("t"),
            Some("u"),
            Some("16777216"),
            Some("1700000000000000"),
            Some("t"),
        ];
        let facts = SessionFacts::read(&rows(&row)).unwrap();
        assert_eq!(facts.system, SystemId::from(u64::MAX));
        assert_eq!(
            (facts.up_for, facts.may_end),
            (Duration::from_millis(1500), true)
        );
    }
}
