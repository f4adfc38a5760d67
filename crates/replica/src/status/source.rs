//! What a replica's source says of it, for `status`.

use std::time::Duration;

use lockstep_client::{ClientError, Connection, Conninfo, Purpose, SlotState, field};
use lockstep_wire::Lsn;

use crate::capture;
use crate::error::{ReplicaError, Result};
use crate::names::{TableName, tables_of};
use crate::publication::Expected;
use crate::state::{
    APPLICATION, Attached, LOCKED, Phase, Replica, ReplicaState, TableCopy, system_id,
};
use crate::status::attached::{Later, later, look};
use crate::status::lost::{
    Lost, Sent, Why, later_partitions, lost, no_partitions, outside, sent, sequences, uncopied,
    without_columns,
};
use lockstep_apply::Unreplicated;
use lockstep_apply::continuity::invalid_words;
use lockstep_apply::sessions;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest time to connect unless the conninfo says otherwise, in seconds.
const CONNECT_S: &str = "3";

/// Most tables that an error names.
const MOST_NAMED: usize = 10;

/// From 16 on, pg_publication_tables opens each table, and so waits for whoever has locked one.
const LOCKS: &str = "SET lock_timeout = '1s'";

pub(crate) const END: &str = "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() \
                   ELSE pg_current_wal_flush_lsn() END";

/// Tables of which publication `$1` has neither them nor a table above them, each with its ancestors:
/// those that `$2` names, and all partitions of their roots.
const UNPUBLISHED: &str = "
SELECT DISTINCT n.nspname, c.relname,
    (SELECT coalesce(json_agg(json_build_array(an.nspname, a.relname)), '[]')
        FROM pg_partition_ancestors(c.oid) o JOIN pg_class a ON a.oid = o.relid
        JOIN pg_namespace an ON an.oid = a.relnamespace)::text
FROM json_array_elements($2::json) s
    JOIN pg_namespace sn ON sn.nspname = s ->> 0
    JOIN pg_class sc ON sc.relnamespace = sn.oid AND sc.relname = s ->> 1
    CROSS JOIN LATERAL (SELECT sc.oid AS relid UNION
        SELECT p.relid FROM pg_partition_tree(pg_partition_root(sc.oid)) p) t
    JOIN pg_class c ON c.oid = t.relid AND c.relkind = 'r' AND c.relpersistence = 'p'
    JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE NOT EXISTS (SELECT FROM pg_publication_rel r
    JOIN pg_publication p ON p.oid = r.prpubid AND p.pubname = $1
    WHERE r.prrelid = c.oid OR r.prrelid IN (SELECT relid FROM pg_partition_ancestors(c.oid)))
ORDER BY 1, 2";

/// The source as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The end of its WAL.
    pub end: Lsn,
    /// The replica's slot. None if it is gone, or if a relay has it.
    pub slot: Option<SlotState>,
    /// Tables with a row filter or a column list, and partitions beside them, that the replica's
    /// publication does not have: nothing of them is replicated.
    pub unpublished: Vec<TableName>,
    /// Other tables that are not replicated, or not under their names.
    pub lost: Vec<Lost>,
    /// Partitions that were made or attached after the copy.
    pub later: Vec<Later>,
    /// What the state is to keep of them, if it has something else.
    pub attached: Option<Vec<Attached>>,
    /// What the publication sends of its tables.
    pub sent: Vec<Sent>,
    /// What its publication is that it should not be, in one sentence with what to do.
    pub altered: Option<String>,
    /// Why not all changes of its schema are followed (`--ddl`), and what to do.
    pub gap: Option<String>,
    /// Number of its sequences, which are in no stream.
    pub sequences: u64,
    replica: String,
    conninfo: Conninfo,
}

/// Where the source is: as the user says, or as the state knows it.
pub(crate) fn source_of(said: Option<&Conninfo>, known: &str) -> Result<Conninfo> {
    match said {
        Some(source) => Ok(source.clone()),
        None => Conninfo::parse(known).map_err(ReplicaError::Source),
    }
}

/// Where a session is, as far as it tells whether that is a replica's source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub system_id: String,
    pub database: String,
    /// The database of the replica's slot, if the server lists that.
    pub slot_database: Option<String>,
    pub has_publication: bool,
}

/// Where a session is.
pub(crate) fn place(session: &mut Connection, replica: &Replica) -> Result<Place, ClientError> {
    let system_id = system_id(session)?;
    let slot_database = session.slot(&replica.slot)?.and_then(|slot| slot.database);
    let sql = "SELECT current_database(), EXISTS (SELECT FROM pg_publication WHERE pubname = $1)";
    let rows = session.query_with(sql, &[&replica.publication])?;
    let row = rows.first().map_or(&[][..], Vec::as_slice);
    Ok(Place {
        system_id,
        database: field(row, 0)?,
        slot_database,
        has_publication: field(row, 1)?,
    })
}

/// Why a place is not the replica's source; None if it is. A database that was renamed is known by what it
/// has of the replica.
pub(crate) fn other_place(replica: &Replica, place: &Place) -> Option<String> {
    let is_known = |system: &str| !system.starts_with("unknown");
    let (system, made_from) = (&place.system_id, &replica.system_id);
    if is_known(system) && is_known(made_from) && system != made_from {
        return Some(format!(
            "it is cluster {system}, and the replica was made from {made_from}"
        ));
    }
    let is_its = match &place.slot_database {
        Some(database) => *database == place.database,
        None => place.has_publication || place.database == replica.source_database,
    };
    let its = place.slot_database.as_ref();
    let its = its.unwrap_or(&replica.source_database);
    (!is_its).then(|| {
        format!(
            "it is database {}, and the replica was made from database {its} of that cluster",
            place.database
        )
    })
}

/// A session that waits for nothing long.
pub(crate) fn connect(source: &Conninfo) -> Result<Connection, ClientError> {
    let mut conninfo = source.clone();
    if conninfo.effective("connect_timeout").is_none() {
        conninfo = conninfo.with("connect_timeout", CONNECT_S)?;
    }
    let mut session = sessions::open(&conninfo, Purpose::Sql, APPLICATION)?;
    session.set_patience(PATIENCE);
    Ok(session)
}

impl Source {
    /// What a user must know of tables that are not replicated.
    pub fn not_replicated(&self, replica: &Replica) -> Option<String> {
        let names: Vec<_> = self.unpublished.iter().map(TableName::to_string).collect();
        (!names.is_empty()).then(|| {
            format!(
                "nothing of {} is replicated, since it is not in publication {}: a partition that is made \
                 after the copy must be added to it if the table above has a row filter or a column list",
                names.join(", "),
                replica.publication
            )
        })
    }

    /// Words for tables that are lost; None if there are none.
    pub fn lost_words(&self) -> Option<String> {
        let named = self.lost.iter().take(MOST_NAMED);
        let mut named: Vec<_> = named
            .map(|lost| format!("{} ({})", lost.table, lost.words()))
            .collect();
        if let more @ 1.. = self.lost.len().saturating_sub(MOST_NAMED) {
            named.push(format!("and {more} more"));
        }
        (!named.is_empty()).then(|| {
            format!(
                "tables are not replicated, or not under their names: {}; where nothing else helps, drop \
                 the replica and create it again",
                named.join(", ")
            )
        })
    }

    /// All that is not replicated as it should be.
    pub fn unreplicated(&self, replica: &Replica) -> Unreplicated {
        let words = [
            self.lost_words(),
            self.not_replicated(replica),
            self.gap.clone(),
        ];
        let words: Vec<_> = words.into_iter().flatten().collect();
        Unreplicated {
            tables: self.lost.len() + self.unpublished.len(),
            words: (!words.is_empty()).then(|| words.join("; ")),
        }
    }

    /// What the target of a replica that follows the source no longer may lack, without what would mend it.
    /// A table that only the target has is no lack.
    pub fn lacking(&self) -> Option<String> {
        let lost = self.lost.iter().filter(|lost| lost.why != Why::Gone);
        let lost = lost.map(|lost| &lost.table);
        let names: Vec<_> = lost
            .chain(&self.unpublished)
            .map(TableName::to_string)
            .collect();
        let named: Vec<_> = names.iter().take(MOST_NAMED).map(String::as_str).collect();
        let more = match names.len().saturating_sub(MOST_NAMED) {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        (!names.is_empty()).then(|| {
            format!(
                "tables were not replicated, or not under their names, so that their rows may not be the \
                 source's: {}{more}",
                named.join(", ")
            )
        })
    }

    /// Adds what the target has in place of later partitions, tables that lack columns there, partitions with
    /// rows that are in no stream, and those that are outside of their table there: the source is asked for
    /// those that the state does not know. `tables` are those of the replica.
    pub fn look_at_target(&mut self, state: &mut ReplicaState, tables: &[TableCopy]) -> Result<()> {
        let later: Vec<_> = self.later.iter().map(|one| one.table.clone()).collect();
        let found = no_partitions(state.connection(), &later);
        self.lost.extend(found.map_err(ReplicaError::Target)?);
        let found = without_columns(state.connection(), &self.sent, tables)
            .map_err(ReplicaError::Target)?;
        // What is wrong now is said rather than what was.
        let has = |table: &TableName| found.iter().any(|found| found.table == *table);
        (self.lost).retain(|lost| !(matches!(lost.why, Why::Doubted(_)) && has(&lost.table)));
        self.add(found);
        let known = state.attached(&self.replica)?;
        let looked = look(&self.later, &known, || connect(&self.conninfo));
        let (attached, found) = looked.map_err(ReplicaError::Source)?;
        self.attached = (attached != known).then_some(attached);
        self.add(found);
        let found = outside(state.connection(), &self.sent, tables);
        self.add(found.map_err(ReplicaError::Target)?);
        Ok(())
    }

    /// Adds tables of which nothing else is said.
    fn add(&mut self, mut found: Vec<Lost>) {
        found.retain(|found| !self.lost.iter().any(|lost| lost.table == found.table));
        self.lost.extend(found);
    }

    /// Why the slot cannot be used any more, and what to do.
    pub fn slot_lost(&self, replica: &Replica) -> Option<String> {
        let reason = self.slot.as_ref()?.invalidation.as_ref()?;
        Some(invalid_words(&replica.slot, reason))
    }

    /// Asks the source that a replica's state names, or `source` in its place. `tables` are those of the
    /// replica, and `expected` is what its publication should be; None if nobody wants to know of tables
    /// that are lost, or of the publication.
    pub fn ask(
        replica: &Replica,
        source: Option<&Conninfo>,
        tables: Option<&[TableCopy]>,
        expected: Option<&Expected>,
    ) -> Result<Self> {
        let conninfo = source_of(source, &replica.source)?;
        let ask = || -> Result<Result<Self, String>, ClientError> {
            let mut session = connect(&conninfo)?;
            session.execute(LOCKS)?;
            if let Some(words) = other_place(replica, &place(&mut session, replica)?) {
                return Ok(Err(words));
            }
            let end = field(&session.query_one(END)?, 0)?;
            let slot = session.slot(&replica.slot)?;
            let mut unpublished = unpublished(&mut session, replica)?;
            let (mut lost, mut later_ones, mut sent) = (Vec::new(), Vec::new(), Vec::new());
            if let Some(tables) = tables {
                let publications = std::slice::from_ref(&replica.publication);
                lost = self::lost(&mut session, publications, tables)?;
                unpublished.retain(|name| !lost.iter().any(|lost| lost.table == *name));
                let excluded = replica.excluded();
                let mut uncopied = uncopied(&mut session, publications, tables, &excluded)?;
                uncopied.retain(|lost| !unpublished.contains(&lost.table));
                lost.extend(uncopied);
                let names = later_partitions(&mut session, publications, tables, &excluded)?;
                later_ones = later(&mut session, publications, &names)?;
                sent = self::sent(&mut session, publications)?;
            }
            if replica.ddl {
                // What the publication has is on its way.
                let is_sent = |table: &TableName| sent.iter().any(|one| one.table == *table);
                lost.retain(|one| {
                    one.why.stays() && !(one.why == Why::Uncopied && is_sent(&one.table))
                });
                (later_ones, sent) = (Vec::new(), Vec::new());
            }
            let sequences = sequences(&mut session, &replica.excluded())?;
            let altered = match expected {
                Some(expected) => expected.words(&expected.differences(&mut session)?),
                None => None,
            };
            let gap = match replica.ddl && replica.phase == Phase::Ready {
                true => capture::gap(&mut session, replica)?,
                false => None,
            };
            let source = Self {
                end,
                slot,
                unpublished,
                lost,
                later: later_ones,
                attached: None,
                sent,
                altered,
                gap,
                sequences,
                replica: replica.name.clone(),
                conninfo: conninfo.clone(),
            };
            Ok(Ok(source))
        };
        let asked = ask().map_err(|error| match error.refusal() {
            Some(refusal) if refusal.sqlstate == LOCKED => ReplicaError::State(format!(
                "source: what publication {} has cannot be seen while one of its tables is locked ({}): look \
                 for the lock in pg_locks there, or repeat once it is gone",
                replica.publication, refusal.message
            )),
            _ => ReplicaError::Source(error),
        })?;
        asked.map_err(ReplicaError::OtherSource)
    }
}

fn unpublished(session: &mut Connection, replica: &Replica) -> Result<Vec<TableName>, ClientError> {
    if replica.subsets.is_empty() {
        return Ok(Vec::new());
    }
    let named: Vec<_> = (replica.subsets.iter())
        .map(|subset| (&subset.table.schema, &subset.table.table))
        .collect();
    let named = serde_json::json!(named).to_string();
    let excluded = replica.excluded();
    let mut found = Vec::new();
    for row in session.query_with(UNPUBLISHED, &[&replica.publication, &named])? {
        let above = tables_of(&row, 2)?;
        if !above.iter().any(|name| excluded.names(name)) {
            found.push(TableName {
                schema: field(&row, 0)?,
                table: field(&row, 1)?,
            });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_known_by_its_cluster_and_database() {
        let replica = Replica {
            name: "r".to_owned(),
            source: String::new(),
            system_id: "7".to_owned(),
            source_database: "app".to_owned(),
            slot: "s".to_owned(),
            publication: "s".to_owned(),
            origin: "s".to_owned(),
            exclude_schemas: Vec::new(),
            exclude_tables: Vec::new(),
            subsets: Vec::new(),
            phase: Phase::Ready,
            start: None,
            paused: false,
            resumes: 0,
            frequency: Duration::ZERO,
            forces: 0,
            ddl: false,
            altering: false,
            read_only: false,
            bandwidth: None,
        };
        for (system, database, slot, has_publication, wanted) in [
            ("7", "app", Some("app"), true, ""),
            ("7", "app", None, false, ""),
            ("unknown 9", "app", None, false, ""),
            // Renamed since.
            ("7", "new", Some("new"), true, ""),
            ("7", "new", None, true, ""),
            ("8", "app", None, false, "cluster 8"),
            ("8", "app", Some("app"), true, "cluster 8"),
            ("7", "other", Some("app"), false, "from database app"),
            ("7", "other", None, false, "it is database other"),
            // Its name is another database's now.
            ("7", "app", Some("new"), false, "from database new"),
        ] {
            let place = Place {
                system_id: system.to_owned(),
                database: database.to_owned(),
                slot_database: slot.map(str::to_owned),
                has_publication,
            };
            let words = other_place(&replica, &place);
            assert_eq!(words.is_none(), wanted.is_empty(), "{place:?} {words:?}");
            assert!(words.unwrap_or_default().contains(wanted), "{place:?}");
        }
    }
}
