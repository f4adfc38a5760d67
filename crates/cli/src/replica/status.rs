//! `lockstep replica status`

use anyhow::Result;
use clap::Args;
use lockstep_apply::control::before_all;
use lockstep_apply::{FullBy, SpoolStats, Unreplicated};
use lockstep_client::Conninfo;
use lockstep_replica::error::ReplicaError;
use lockstep_replica::publication::Expected;
use lockstep_replica::publication::subset::Subset;
use lockstep_replica::state::{
    Applied, Cycle, Hold, Holder, Phase, Progress, Promotion, Replica, ReplicaState, SwitchStage,
    TableCopy, TableState, Unmade, unmade_words,
};
use lockstep_replica::status::source::Source;
use lockstep_replica::status::standing::{Lag, Standing, lag, missed, missing_words, standing};
use lockstep_service::exit::Failure;
use lockstep_service::words::figures::seconds;
use lockstep_service::words::output::{self, Output};
use lockstep_service::words::{brief, figures, lines};
use serde_json::{Value, json};

use super::verify::unmade_json;
use super::{conninfo, cycles, failed, promote};

/// Columns of a note on a screen.
const COLUMNS: usize = 100;

/// `lockstep replica status`
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Show only this replica, with its tables
    #[arg(value_name = "NAME", value_parser = super::replica_name)]
    name: Option<String>,
    #[command(flatten)]
    target: super::TargetArgs,
    /// How to connect to the source, if it has moved since the creation
    #[arg(long, value_name = "CONNINFO", requires = "name")]
    source: Option<String>,
    /// Format of the result on standard output
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    output: Output,
}

/// A replica with all that is known.
struct Known {
    replica: Replica,
    holder: Holder,
    /// Who has the lock of a replica that is copied, if apply has not.
    taken: Option<String>,
    progress: Progress,
    applied: Applied,
    hold: Option<Hold>,
    tables: Vec<TableCopy>,
    /// What the copy could not make on the target, and sequences that are not set.
    unmade: Vec<Unmade>,
    /// The newest cycle that has ended.
    last_cycle: Option<Cycle>,
    /// None unless a promotion was begun.
    promotion: Option<Promotion>,
    switchover: SwitchStage,
    /// None while there is nothing to ask it about.
    source: Option<Result<Source, ReplicaError>>,
}

pub fn run(args: &StatusArgs) -> Result<()> {
    let target = conninfo("--target", &args.target.target)?;
    let source = super::source(args.source.as_deref())?;
    let known = ask(&target, args.name.as_deref(), source.as_ref()).map_err(failed)?;
    if let (Some(name), true) = (&args.name, known.is_empty()) {
        return Err(Failure::Usage(format!("the target has no replica \"{name}\"")).into());
    }
    match args.output {
        Output::Json => {
            let all: Vec<_> = known
                .iter()
                .map(|one| one.json(args.name.is_some()))
                .collect();
            output::print(&json!({ "replicas": all }).to_string());
        }
        Output::Text if known.is_empty() => output::print("the target has no replica"),
        Output::Text => print(&known, args.name.is_some()),
    }
    Ok(())
}

fn print(known: &[Known], with_tables: bool) {
    let say = |line: &str| output::print(&lockstep_service::sanitize::sanitize(line));
    let heads = [
        "name", "phase", "tables", "copied", "rate", "start", "apply", "applied", "behind",
        "missing",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(known.iter().map(Known::line));
    lines::table(&rows).iter().for_each(|line| say(line));
    for one in known {
        for note in one.notes() {
            let lead = format!("{}: ", one.replica.name);
            let lines = lines::wrapped(&lead, &note, COLUMNS);
            lines.iter().for_each(|line| say(line));
        }
    }
    if with_tables {
        let heads = ["table", "state", "rows", "bytes", "start", "missing"];
        let mut rows = vec![heads.map(str::to_owned).to_vec()];
        rows.extend(known.iter().flat_map(|one| &one.tables).map(table_line));
        lines::table(&rows).iter().for_each(|line| say(line));
        for subset in known.iter().flat_map(|one| &one.replica.subsets) {
            // As it was written: a line break within quotes would change what it says.
            let (schema, table) = (&subset.table.schema, &subset.table.table);
            say(&format!("{schema}.{table}: {}", subset_words(subset)));
        }
        for one in known.iter().flat_map(|one| &one.unmade) {
            say(&one.line());
        }
    }
}

fn ask(
    target: &Conninfo,
    name: Option<&str>,
    source: Option<&Conninfo>,
) -> Result<Vec<Known>, ReplicaError> {
    let Some(mut state) = ReplicaState::see(target)? else {
        return Ok(Vec::new());
    };
    let distrust = state.distrust()?;
    // A password is only sent to where a role says that could have it anyway, or the user.
    let ask = |replica: &Replica, tables: &[TableCopy], expected: &Expected| match (
        source, &distrust,
    ) {
        (None, Some(words)) => Err(ReplicaError::State(format!(
            "it is not asked, as the target's {words}, who may have named another server: --source with \
             the replica's name asks it"
        ))),
        _ => Source::ask(replica, source, Some(tables), Some(expected)),
    };
    let mut known = Vec::new();
    for replica in state.replicas()? {
        if name.is_some_and(|name| name != replica.name) {
            continue;
        }
        let tables = state.tables(&replica.name)?;
        let expected = state.expected(&replica)?;
        let (holder, progress, applied, last_cycle) = state.at_one_moment(|state| {
            let (holder, progress) = (state.holder(&replica.name)?, state.progress(&replica.name)?);
            let (applied, mut cycles) = (
                state.applied(&replica.name)?,
                state.cycles(&replica.name, 1)?,
            );
            Ok((holder, progress, applied, cycles.pop()))
        })?;
        // After the state: what it has applied was written before.
        let source = (replica.phase == Phase::Ready).then(|| {
            ask(&replica, &tables, &expected).and_then(|mut source| {
                source.look_at_target(&mut state, &tables)?;
                Ok(source)
            })
        });
        let is_taken = replica.phase == Phase::Ready && holder == Holder::Other;
        known.push(Known {
            holder,
            taken: is_taken
                .then(|| state.lock_words(&replica.name))
                .transpose()?,
            progress,
            applied,
            hold: state.hold(&replica.name)?,
            source,
            tables,
            unmade: state.unmade(&replica.name)?,
            last_cycle,
            promotion: state.promotion(&replica.name)?,
            switchover: state.switch_stage(&replica.name)?,
            replica,
        });
    }
    Ok(known)
}

fn start(start: Option<lockstep_wire::Lsn>) -> String {
    start.map_or_else(|| "-".to_owned(), |start| start.to_string())
}

fn table_line(table: &TableCopy) -> Vec<String> {
    vec![
        format!("{}.{}", table.name.schema, table.name.table),
        table.state.text().to_owned(),
        figures::count(table.rows as f64),
        brief::bytes(table.bytes as f64),
        start(table.start),
        figures::count(table.missing as f64),
    ]
}

impl Known {
    fn copied(&self) -> usize {
        let copied = |table: &&TableCopy| table.state == TableState::Copied;
        self.tables.iter().filter(copied).count()
    }

    /// The rate while rows are copied; it means nothing afterwards.
    fn is_copying(&self) -> bool {
        self.replica.phase == Phase::Copying && self.holder != Holder::Nobody
    }

    fn missing(&self) -> u64 {
        self.tables.iter().map(|table| table.missing).sum()
    }

    /// What works on the replica, in words.
    fn apply(&self) -> Option<&str> {
        // What was written last is of a time when it followed a source.
        if self.promotion.is_some() {
            return None;
        }
        match standing(self.holder, &self.applied) {
            Standing::NotRunning => Some("not running"),
            Standing::Other => None,
            Standing::Silent => Some("silent"),
            Standing::Apply(state) => Some(state),
        }
    }

    /// Verify lets it stand still.
    fn is_held(&self) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.at.is_some())
    }

    fn source(&self) -> Option<&Source> {
        self.source.as_ref()?.as_ref().ok()
    }

    /// What of the source is not replicated; as it was last seen if the source cannot be asked.
    fn unreplicated(&self) -> Option<Unreplicated> {
        let now = (self.source()).map(|source| source.unreplicated(&self.replica));
        now.or_else(|| self.applied.unreplicated.clone())
    }

    fn lag(&self) -> Lag {
        if self.promotion.is_some() {
            return Lag::Unknown;
        }
        let standing = standing(self.holder, &self.applied);
        let end = self.source().map(|source| source.end);
        lag(standing, &self.applied, end)
    }

    /// What the spool holds, as far as a process has just said.
    fn spool(&self) -> Option<&SpoolStats> {
        match standing(self.holder, &self.applied) {
            Standing::Apply(_) => self.applied.spool.as_ref(),
            _ => None,
        }
    }

    /// How many writers its process uses, and why.
    fn writers(&self) -> Option<&(usize, String)> {
        match standing(self.holder, &self.applied) {
            Standing::Apply(_) => self.applied.writers.as_ref(),
            _ => None,
        }
    }

    /// What its source says that it cannot live with.
    fn errors_of_source(&self) -> Vec<String> {
        let Some(source) = self.source() else {
            return Vec::new();
        };
        let errors = [source.slot_lost(&self.replica), source.altered.clone()];
        errors.into_iter().flatten().collect()
    }

    /// What a user must know beside the figures.
    fn notes(&self) -> Vec<String> {
        if let Some(promotion) = &self.promotion {
            return self.promoted_notes(promotion);
        }
        let standing = standing(self.holder, &self.applied);
        let last = self.last_cycle.as_ref();
        let mut notes = cycles::notes(&self.replica, standing, &self.applied, last);
        notes.extend(self.switchover_note());
        if self.replica.altering {
            notes.push(format!(
                "it is being altered, and nothing applies; if no command works on it, lockstep replica alter {} \
                 --go-on ends that",
                self.replica.name
            ));
        }
        notes.extend(self.spool().into_iter().flat_map(spool_words));
        notes.extend((self.writers()).map(|(used, why)| format!("writers: {used}, {why}")));
        let of_source = self.errors_of_source();
        if let Some(error) = (self.applied.error.as_ref()).filter(|it| !of_source.contains(it)) {
            notes.push(format!("it does not apply: {error}"));
        }
        notes.extend(of_source);
        notes.extend(self.hold_note());
        if self.apply() == Some("silent") {
            notes.push(
                "its process is connected and writes nothing: is its machine alive?".to_owned(),
            );
        }
        notes.extend(self.taken.clone());
        if let Some(Err(error)) = &self.source {
            notes.push(format!(
                "the source cannot be asked how far it is ({error}); what is behind is at least what \
                 its stream has told"
            ));
            let words = self.unreplicated().and_then(|it| it.words);
            notes.extend(words.map(|words| format!("when it was last asked, {words}")));
        }
        if self.replica.ddl {
            notes.push("it follows changes of the source's schema".to_owned());
        }
        if let Some(bytes) = self.replica.bandwidth {
            let rate = brief::bytes(bytes as f64);
            notes.push(format!(
                "at most {rate}/s are received from the source (--bandwidth)"
            ));
        }
        if self.replica.read_only {
            let words = "new sessions of others in the target's database begin read-only: SET \
                default_transaction_read_only = off lets one write";
            notes.push(words.to_owned());
        }
        notes.extend(
            self.source()
                .into_iter()
                .flat_map(|it| self.source_notes(it)),
        );
        notes.extend(unmade_words(&self.unmade, &self.replica.name));
        notes.extend(missing_words(self.missing()));
        notes
    }

    fn hold_note(&self) -> Option<String> {
        let does = match self.is_held() {
            true => "holds it still",
            false => "asks it to stand still",
        };
        self.hold.as_ref().map(|hold| {
            format!(
                "lockstep replica verify {does}: {}; changes flow again once it has its snapshots, or ends",
                holder_words(hold)
            )
        })
    }

    /// What the source says beside errors.
    fn source_notes(&self, source: &Source) -> Vec<String> {
        let mut notes = Vec::new();
        if source.slot.is_none() {
            let slot = &self.replica.slot;
            notes.push(format!("the source lists no slot {slot}: is it gone?"));
        }
        notes.extend(source.not_replicated(&self.replica));
        notes.extend(source.lost_words());
        notes.extend(source.gap.clone());
        if source.sequences > 0 {
            let when = match self.replica.frequency.is_zero() {
                true => "some seconds after changes",
                false => "after each cycle",
            };
            notes.push(format!(
                "sequences ({}) are set to the source's values {when}, while a process applies, and are not \
                 compared",
                source.sequences
            ));
        }
        if let Some(applied) = self.applied.lsn.filter(|applied| *applied > source.end) {
            let end = source.end;
            notes.push(format!(
                "the source's WAL ends at {end}, before {applied}, which is applied: it was set back to an \
                 earlier state; drop the replica and create it again"
            ));
        }
        notes
    }

    fn switchover_note(&self) -> Option<String> {
        let name = &self.replica.name;
        let goes = match self.promotion {
            None => "takes it back or goes on",
            Some(_) => "goes on",
        };
        self.switchover.is_begun().then(|| {
            format!(
                "a switchover has begun and is not over: the source may take no writes, and clients may wait; if no \
                 command works on it, repeat lockstep replica switchover {name}, which {goes}"
            )
        })
    }

    /// What is left to say of a replica that follows no source.
    fn promoted_notes(&self, promotion: &Promotion) -> Vec<String> {
        let name = &self.replica.name;
        let is = match self.replica.phase {
            Phase::Promoted => format!("it is promoted: {}", promote::words(promotion)),
            _ if self.switchover.is_begun() => "it is being promoted by a switchover".to_owned(),
            _ => format!(
                "it is being promoted: {}; if no command works on it, run lockstep replica promote {name} \
                 again, which goes on",
                promote::words(promotion)
            ),
        };
        let left = (promotion.is_left && self.replica.phase == Phase::Promoted).then(|| {
            format!(
                "the source may still have slot {}, which keeps WAL: lockstep replica drop {name} removes it",
                self.replica.slot
            )
        });
        let mut notes: Vec<_> = std::iter::once(is).chain(left).collect();
        notes.extend(self.switchover_note());
        notes.extend(unmade_words(&self.unmade, name));
        notes.extend(missed(self.missing()));
        notes
    }

    /// Where the target stands.
    fn applied(&self) -> Option<lockstep_wire::Lsn> {
        let promoted = self.promotion.as_ref().and_then(|it| it.lsn);
        promoted.or(self.applied.lsn)
    }

    /// Why it does not apply. One that is promoted is not to.
    fn error(&self) -> Option<String> {
        let last = (self.applied.error.clone()).filter(|_| self.promotion.is_none());
        self.errors_of_source().into_iter().next().or(last)
    }

    fn line(&self) -> Vec<String> {
        let Progress {
            bytes_total,
            bytes_done,
            bytes_per_s,
        } = self.progress;
        let share = match bytes_total {
            _ if self.replica.phase > Phase::Copying => "100 %".to_owned(),
            0 => "-".to_owned(),
            total => format!("{} %", bytes_done.saturating_mul(100) / total),
        };
        let rate = match self.is_copying() {
            true => format!("{}/s", brief::bytes(bytes_per_s as f64)),
            false => "-".to_owned(),
        };
        vec![
            self.replica.name.clone(),
            self.replica.phase.text().to_owned(),
            format!("{}/{}", self.copied(), self.tables.len()),
            share,
            rate,
            start(self.replica.start),
            match self.is_held() {
                true => "held".to_owned(),
                false => self.apply().unwrap_or("-").to_owned(),
            },
            start(self.applied()),
            match self.lag() {
                Lag::Unknown => "-".to_owned(),
                Lag::AtLeast(bytes) => format!("≥ {}", brief::bytes(bytes as f64)),
                Lag::Exactly(bytes) => brief::bytes(bytes as f64),
            },
            figures::count(self.missing() as f64),
        ]
    }

    fn json(&self, with_tables: bool) -> Value {
        let replica = &self.replica;
        let (lag, at_least) = match self.lag() {
            Lag::Unknown => (None, None),
            Lag::AtLeast(bytes) => (None, Some(bytes)),
            Lag::Exactly(bytes) => (Some(bytes), None),
        };
        let text = |lsn: lockstep_wire::Lsn| lsn.to_string();
        let slot = self.source().and_then(|source| source.slot.as_ref());
        let source_error = self
            .source
            .as_ref()
            .and_then(|source| source.as_ref().err());
        let mut value = json!({
            "name": replica.name,
            "source": replica.source,
            "phase": replica.phase.text(),
            "start_lsn": replica.start.map(|start| start.to_string()),
            "slot": replica.slot,
            "publication": replica.publication,
            "paused": replica.paused,
            "ddl": replica.ddl,
            "read_only": replica.read_only,
            "bandwidth": replica.bandwidth,
            "running": self.holder != Holder::Nobody,
            "apply": self.apply(),
            "applied_lsn": self.applied().map(text),
            "lag_bytes": lag,
            "lag_bytes_at_least": at_least,
            "missing_rows": self.missing(),
            "source_flush_lsn": self.source().map(|source| text(source.end)),
            "slot_confirmed_lsn": slot.map(|slot| text(slot.confirmed)),
            "lost_tables": self.source().map(lost_json),
            "sequences": self.source().map(|source| source.sequences),
            "writers": self.writers().map(|it| it.0),
            "writers_why": self.writers().map(|it| &it.1),
            "unreplicated_tables": self.unreplicated().map(|it| it.tables),
            "not_made": self.unmade.iter().map(unmade_json).collect::<Vec<_>>(),
            "source_error": source_error.map(ToString::to_string),
            "slot_invalidation": slot.and_then(|slot| slot.invalidation.clone()),
            "publication_altered": self.source().and_then(|source| source.altered.clone()),
            "error": self.error(),
            "promotion": self.promotion.as_ref().map(promote::to_json),
            "switchover": match self.switchover {
                SwitchStage::None => None,
                SwitchStage::Begun | SwitchStage::Pooled | SwitchStage::Proxied => Some("begun"),
                SwitchStage::Done => Some("done"),
            },
            "spool": self.spool().map(spool_json),
            "cycles": cycles::json(
                &self.replica,
                standing(self.holder, &self.applied),
                &self.applied,
                self.last_cycle.as_ref(),
            ),
            "hold": self.hold.as_ref().map(hold_json),
            "tables_total": self.tables.len(),
            "tables_copied": self.copied(),
            "bytes_total": self.progress.bytes_total,
            "bytes_done": self.progress.bytes_done,
            "bytes_per_s": self.is_copying().then_some(self.progress.bytes_per_s),
        });
        if let (true, Some(map)) = (with_tables, value.as_object_mut()) {
            let tables: Vec<_> = self.tables.iter().map(table_json).collect();
            map.insert("tables".to_owned(), tables.into());
            let subsets: Vec<_> = replica.subsets.iter().map(subset_json).collect();
            map.insert("subsets".to_owned(), subsets.into());
        }
        value
    }
}

/// What a spool holds, in words. A transaction whose end it does not have may be in it, too, so the target
/// never has all of it for sure.
fn spool_words(spool: &SpoolStats) -> Vec<String> {
    let size = |bytes: u64| brief::bytes(bytes as f64);
    let (bytes, limit) = (size(spool.bytes), size(spool.limit));
    let has = match spool.from < spool.to {
        true => format!(
            "holds changes from {} to {} that the target does not have yet",
            spool.from, spool.to
        ),
        false => "holds no whole transaction that the target lacks".to_owned(),
    };
    let holds = format!("its spool takes {bytes} of at most {limit} and {has}");
    let full = (spool.full.as_ref()).map(|full| format!("its spool is full: {}", full.words));
    std::iter::once(holds).chain(full).collect()
}

fn spool_json(spool: &SpoolStats) -> Value {
    json!({
        "bytes": spool.bytes,
        "limit_bytes": spool.limit,
        "from_lsn": spool.from.to_string(),
        "to_lsn": spool.to.to_string(),
        "full": spool.full.as_ref().map(|full| &full.words),
        "full_by": spool.full.as_ref().and_then(|full| full.by).map(FullBy::name),
    })
}

/// Whose hold it is and since when, in words.
fn holder_words(hold: &Hold) -> String {
    let of = |lead: &str, what: &Option<String>| match what {
        Some(what) => format!(" {lead} {what}"),
        None => String::new(),
    };
    let age = hold.age.map(|age| seconds(age.as_secs_f64() * 1000.0));
    let (user, client) = (of("of user", &hold.user), of("at", &hold.client));
    format!(
        "session {} on the target{user}{client}{}",
        hold.pid,
        of("for", &age)
    )
}

fn hold_json(hold: &Hold) -> Value {
    json!({
        "by": "lockstep replica verify",
        "pid": hold.pid,
        "user": hold.user,
        "client": hold.client,
        "age_s": hold.age.map(|age| age.as_secs_f64()),
        "held": hold.at.is_some(),
        "lsn": hold.at.filter(|at| *at != before_all()).map(|at| at.to_string()),
    })
}

/// What of a table is replicated, in words.
fn subset_words(subset: &Subset) -> String {
    let columns = subset.columns.as_ref();
    let columns = columns.map(|columns| format!("columns {}", columns.join(", ")));
    let filter = subset.filter.as_ref();
    let filter = filter.map(|filter| format!("rows WHERE {filter}"));
    let words: Vec<_> = filter.into_iter().chain(columns).collect();
    match words.is_empty() {
        // A partition that was attached to a table of which only a part is replicated.
        true => "all rows and columns".to_owned(),
        false => words.join("; "),
    }
}

fn subset_json(subset: &Subset) -> Value {
    json!({
        "schema": subset.table.schema,
        "table": subset.table.table,
        "row_filter": subset.filter,
        "columns": subset.columns,
    })
}

fn lost_json(source: &Source) -> Vec<Value> {
    let lost = source.lost.iter();
    lost.map(|lost| {
        json!({
            "schema": lost.table.schema,
            "table": lost.table.table,
            "why": lost.words(),
        })
    })
    .collect()
}

fn table_json(table: &TableCopy) -> Value {
    json!({
        "schema": table.name.schema,
        "table": table.name.table,
        "state": table.state.text(),
        "rows": table.rows,
        "bytes": table.bytes,
        "start_lsn": table.start.map(|start| start.to_string()),
        "missing_rows": table.missing,
    })
}
