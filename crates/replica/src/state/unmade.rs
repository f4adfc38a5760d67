//! What the copy could not make on the target, each with the command that makes it. A row is removed once
//! the target has the object. So are sequences that cannot be set to the source's values, as phase `ready`:
//! `run` lists them again after each look. Tables that somebody has left out of a replica that follows
//! changes of the schema are told with them.

use serde_json::json;

use lockstep_client::{ClientError, field};
use lockstep_service::words::figures::{counted, verb};

use super::{Phase, ReplicaState};
use crate::error::{ReplicaError, Result};

/// What pg_dump calls the value of a sequence.
pub const SEQUENCE: &str = "SEQUENCE SET";

/// The kinds that pg_dump does not have.
pub const VIEW: &str = "MATERIALIZED VIEW DATA";
pub const ANALYZE: &str = "ANALYZE";

/// What pg_dump calls the rows of a table: it is left out.
pub const ROWS: &str = "TABLE DATA";

/// Most objects that [`words`] names.
const MOST_NAMED: usize = 5;

/// An object that the source has and the target lacks, since the target refused it, or a sequence that cannot
/// be set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmade {
    /// The kind in words of pg_dump, or [`VIEW`] or [`ANALYZE`].
    pub kind: String,
    /// `-` if it has none.
    pub schema: String,
    /// The name; before that of what belongs to a table the table's name and a space.
    pub object: String,
    /// SQL that makes it.
    pub command: String,
    /// What the target said, and what to do first.
    pub error: String,
}

impl Unmade {
    /// Kind and name, for people.
    pub fn name(&self) -> String {
        let kind = match self.kind.as_str() {
            ANALYZE => "statistics".to_owned(),
            SEQUENCE => "sequence".to_owned(),
            VIEW => "rows of materialized view".to_owned(),
            ROWS => "rows of table".to_owned(),
            "FK CONSTRAINT" => "foreign key".to_owned(),
            kind => kind.to_lowercase(),
        };
        match self.schema.as_str() {
            "-" => format!("{kind} {}", self.object),
            schema => format!("{kind} {schema}.{}", self.object),
        }
    }

    /// The object, what is wrong, and the command that mends it, for people.
    pub fn line(&self) -> String {
        let (name, error, command) = (self.name(), &self.error, &self.command);
        match self.kind.as_str() {
            SEQUENCE => format!("{name} is not set to the source's value: {error}: {command}"),
            ROWS => format!("{name} are not the source's: {error}; {command}"),
            _ => format!("{name} is not there: {error}; {command}"),
        }
    }

    /// The target lacks something of the schema, or rows. Without statistics, or a sequence's value, it lacks
    /// neither.
    pub fn is_of_the_copy(&self) -> bool {
        self.kind != ANALYZE && self.kind != SEQUENCE
    }
}

/// One sentence about all of them; None if there are none.
pub fn words(unmade: &[Unmade], replica: &str) -> Option<String> {
    let (unset, unmade): (Vec<_>, Vec<_>) = unmade.iter().partition(|one| one.kind == SEQUENCE);
    let (left, unmade): (Vec<_>, Vec<_>) = unmade.into_iter().partition(|one| one.kind == ROWS);
    let objects = (!unmade.is_empty()).then(|| {
        format!(
            "the copy could not make {} of the source on the target: {}",
            counted(unmade.len() as u64, "object"),
            names(&unmade)
        )
    });
    let sequences = (!unset.is_empty()).then(|| {
        let number = unset.len() as u64;
        format!(
            "{} {} not set to the source's values: {}",
            counted(number, "sequence"),
            verb(number, "is", "are"),
            names(&unset)
        )
    });
    let left = (!left.is_empty()).then(|| {
        let number = left.len() as u64;
        format!(
            "{} {} left out and {} no more changes: {}",
            counted(number, "table"),
            verb(number, "is", "are"),
            verb(number, "gets", "get"),
            names(&left)
        )
    });
    let all: Vec<_> = objects.into_iter().chain(sequences).chain(left).collect();
    (!all.is_empty()).then(|| {
        format!(
            "{}; lockstep replica status {replica} prints the commands that mend this",
            all.join("; ")
        )
    })
}

fn names(unmade: &[&Unmade]) -> String {
    let mut named: Vec<_> = (unmade.iter().take(MOST_NAMED))
        .map(|one| format!("{} ({})", one.name(), one.error))
        .collect();
    if let more @ 1.. = unmade.len().saturating_sub(MOST_NAMED) {
        named.push(format!("and {more} more"));
    }
    named.join(", ")
}

/// True for a row `u` whose object the target has now. What belongs to a table has the table's name before
/// its own. A foreign key is there once it holds for all rows.
const IS_MADE: &str = "CASE
    WHEN u.kind LIKE '%CONSTRAINT' THEN EXISTS (SELECT FROM pg_constraint k
        JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = u.schema_name AND c.relname || ' ' || k.conname = u.object_name
            AND (k.convalidated OR u.command LIKE '%NOT VALID;'))
    WHEN u.kind = 'TRIGGER' THEN EXISTS (SELECT FROM pg_trigger t
        JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = u.schema_name AND c.relname || ' ' || t.tgname = u.object_name)
    WHEN u.kind = 'RULE' THEN EXISTS (SELECT FROM pg_rewrite r
        JOIN pg_class c ON c.oid = r.ev_class JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = u.schema_name AND c.relname || ' ' || r.rulename = u.object_name)
    WHEN u.kind = 'POLICY' THEN EXISTS (SELECT FROM pg_policy p
        JOIN pg_class c ON c.oid = p.polrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = u.schema_name AND c.relname || ' ' || p.polname = u.object_name)
    WHEN u.kind = 'STATISTICS' THEN EXISTS (SELECT FROM pg_statistic_ext s
        JOIN pg_namespace n ON n.oid = s.stxnamespace
        WHERE n.nspname = u.schema_name AND s.stxname = u.object_name)
    WHEN u.kind = 'EVENT TRIGGER' THEN EXISTS (SELECT FROM pg_event_trigger e
        WHERE e.evtname = u.object_name)
    ELSE EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        LEFT JOIN pg_index i ON i.indexrelid = c.oid
        WHERE n.nspname = u.schema_name AND c.relname = u.object_name AND CASE u.kind
            WHEN 'INDEX' THEN i.indisvalid
            WHEN 'INDEX ATTACH' THEN c.relispartition
            WHEN 'ROW SECURITY' THEN c.relrowsecurity
            WHEN 'MATERIALIZED VIEW DATA' THEN c.relispopulated
            WHEN 'ANALYZE' THEN
                pg_stat_get_analyze_count(c.oid) + pg_stat_get_autoanalyze_count(c.oid) > 0 END)
    END";

impl ReplicaState {
    /// Keeps what a phase could not make, in place of what an earlier call of the phase could not.
    pub fn set_unmade(&mut self, name: &str, phase: Phase, unmade: &[Unmade]) -> Result<()> {
        let rows = unmade
            .iter()
            .map(|one| json!([one.kind, one.schema, one.object, one.command, one.error]));
        let rows = serde_json::Value::from_iter(rows).to_string();
        let sql = "WITH before AS (DELETE FROM lockstep.unmade WHERE replica = $1 AND phase = $2) \
                   INSERT INTO lockstep.unmade (replica, phase, place, kind, schema_name, object_name, \
                       command, error) \
                   SELECT $1, $2, (SELECT coalesce(max(place), 0) FROM lockstep.unmade) + u.place, \
                       u.row ->> 0, u.row ->> 1, u.row ->> 2, u.row ->> 3, u.row ->> 4 \
                   FROM json_array_elements($3::json) WITH ORDINALITY AS u (row, place)";
        let kept = self
            .connection
            .query_with(sql, &[&name, &phase.text(), &rows]);
        kept.map_err(ReplicaError::Target)?;
        self.sum_up_unmade(name)
    }

    /// What the target still lacks of it, in the order in which it is to be made.
    pub fn unmade(&mut self, name: &str) -> Result<Vec<Unmade>> {
        let sql = format!(
            "SELECT u.kind, u.schema_name, u.object_name, u.command, u.error, u.place FROM lockstep.unmade u \
             WHERE u.replica = $1 AND ({IS_MADE}) IS NOT TRUE \
             UNION ALL SELECT $2::text, t.schema_name, t.table_name, 'drop the replica and create it again', \
                 'somebody has let the replica go on without this table', NULL::bigint \
             FROM lockstep.table_copy t WHERE t.replica = $1 AND t.state = 'left_out' ORDER BY 6, 2, 3"
        );
        let rows = self.connection.query_with(&sql, &[&name, &ROWS]);
        let rows = rows.map_err(ReplicaError::Target)?;
        let unmade = |row: &Vec<Option<String>>| -> Result<_, ClientError> {
            Ok(Unmade {
                kind: field(row, 0)?,
                schema: field(row, 1)?,
                object: field(row, 2)?,
                command: field(row, 3)?,
                error: field(row, 4)?,
            })
        };
        let unmade: Result<_, ClientError> = rows.iter().map(unmade).collect();
        unmade.map_err(ReplicaError::Target)
    }

    /// Words for tables that are left out; None if there are none.
    pub fn left_out_words(&mut self, name: &str) -> Result<Option<String>> {
        let mut unmade = self.unmade(name)?;
        unmade.retain(|one| one.kind == ROWS);
        Ok(words(&unmade, name))
    }

    /// Forgets what the target has by now. Returns what it still lacks.
    pub fn forget_made(&mut self, name: &str) -> Result<Vec<Unmade>> {
        let sql = format!("DELETE FROM lockstep.unmade u WHERE u.replica = $1 AND ({IS_MADE})");
        let forgotten = self.connection.query_with(&sql, &[&name]);
        forgotten.map_err(ReplicaError::Target)?;
        self.sum_up_unmade(name)?;
        self.unmade(name)
    }

    /// For those that know the replica's row alone.
    fn sum_up_unmade(&mut self, name: &str) -> Result<()> {
        let unmade = self.unmade(name)?;
        let sql = "UPDATE lockstep.replica SET unmade_objects = $2::bigint, unmade = $3 \
                   WHERE name = $1 AND (unmade_objects, unmade) IS DISTINCT FROM ($2::bigint, $3)";
        let parameters: [&dyn lockstep_client::ToText; 3] =
            [&name, &unmade.len(), &words(&unmade, name)];
        let kept = self.connection.query_with(sql, &parameters);
        kept.map(drop).map_err(ReplicaError::Target)
    }
}
