//! What becomes of replication commands: which slots are the relay's, and how they become
//! and cease to be.
//!
//! A slot is made on the primary as ever, so it has a consistent point and whatever
//! snapshot its maker wanted. With its first `START_REPLICATION` through the relay it is
//! *adopted*: the relay notes its position and drops it on the primary. From then on the
//! relay answers for it.
//!
//! | the first command | what happens |
//! |---|---|
//! | its group is there and has all since the slot's position | adopted |
//! | no group has its publications and options | a group is made whose upstream slot is a copy of it; adopted |
//! | its group begins after its position | passed through, until it has caught up |
//! | its group cannot go on | passed through, until that group is gone |
//! | a table's initial synchronisation, another plugin, options that pgoutput refuses | passed through |
//! | what one stream cannot give to all: another `DateStyle`, two-phase commit, also if only its slot says so | passed through |
//! | a failover slot, while the relay's own are none | passed through |
//!
//! A subscription that was altered comes back with other publications or options. It then
//! goes on in another group: units up to where that one begins come from the old group,
//! as it was asked for before, later ones from the new. A new group's upstream slot is a
//! copy of the old one's, so it begins at what the old one has confirmed, and nothing is
//! between the two. In the same way a slot that wants what cannot be shared goes back to
//! the primary: a copy with its name is made there, units up to it come from the relay.
//! [`routes`] decides all that.
//!
//! Two-phase commit is asked for once, in `START_REPLICATION` or for the slot, and then lasts as
//! long as the slot. So the book notes it before the relay answers, and the copy gets it before
//! it is the subscriber's. What comes from the relay has each prepared transaction whole, where
//! it was committed. The primary sends those that are committed after the position where it
//! takes over: the ones prepared before it whole as well, the others when they are prepared. Its
//! slot keeps that position for as long as it lives, so each of them comes once.

use std::sync::Arc;
use std::time::Duration;

use lockstep_client::{ClientError, Connection};
use lockstep_service::clock;
use lockstep_wire::Lsn;
use lockstep_wire::backend::{Backend, Report};
use lockstep_wire::command::Command;
use tokio::sync::watch;
use tracing::info;

use crate::adoption::{self, Action, Adoption, Drop, Event, Verdict};
use crate::config::Plugin;
use crate::error::RelayError;
use crate::group::{Group, GroupKey, Origin, Phase};
use crate::relay::{Relay, drop_at_primary};
use crate::routes::{self, Choice, Fitting, Wanted};
use crate::send::task::{Next, Sending};
use crate::session::{Canceled, Decision, Facts, Needs, SlotCommands, Standing, Terminated};
use crate::slot_sql::{Act, Listed, exists};
use crate::slots::{InUse, PRIMARY, Route, Slot};
use crate::spare::Scarce;
use crate::stream_options::{self, StreamOptions};

mod alter;
mod back;
mod in_sql;

use alter::{ALTERS_SLOTS, Altered};

/// How long `DROP_REPLICATION_SLOT … WAIT` waits for the slot's session to end.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// How long a command waits for the primary to drop its copy of a slot: the relay asks it
/// each second.
const LONGEST_SETTLING: Duration = Duration::from_secs(5);

/// Pause between two looks of a command that waits.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The relay as sessions see it.
#[derive(Debug, Clone)]
pub struct Sessions(pub Arc<Relay>);

/// Why a slot cannot be served: an error for the client, or not ours after all.
enum Refusal {
    Pass(String),
    Error(Box<Report>),
}

impl From<Report> for Refusal {
    fn from(report: Report) -> Self {
        Self::Error(Box::new(report))
    }
}

impl From<RelayError> for Refusal {
    fn from(error: RelayError) -> Self {
        let sqlstate = match &error {
            RelayError::Upstream(ClientError::Refused(refusal)) => refusal.sqlstate.as_str(),
            RelayError::Upstream(_) => "08006",
            _ => "58000",
        };
        Report::error(
            sqlstate,
            format!("the relay cannot serve this slot: {error}"),
        )
        .into()
    }
}

impl From<ClientError> for Refusal {
    fn from(error: ClientError) -> Self {
        RelayError::from(error).into()
    }
}

impl SlotCommands for Sessions {
    type Stream = Sending;

    fn needs(&self, facts: &Facts, command: &Command, _text: &str) -> Needs {
        let ours = |slot: &str| match self.0.slots().get(slot) {
            Some(_) => Needs::Standing,
            None => Needs::Nothing,
        };
        match command {
            Command::StartLogical { .. } => Needs::StandingNow,
            Command::CreateLogicalSlot { slot, .. }
            | Command::CreatePhysicalSlot { slot, .. }
            | Command::ReadReplicationSlot { slot }
            | Command::StartReplication {
                slot: Some(slot), ..
            }
            | Command::DropReplicationSlot { slot, .. } => ours(slot),
            // Older servers take it for SQL.
            Command::AlterReplicationSlot { slot, .. } if facts.major() >= 17 => ours(slot),
            _ => Needs::Nothing,
        }
    }

    async fn decide(
        &self,
        facts: &Facts,
        standing: Option<&Standing>,
        command: &Command,
        _text: &str,
    ) -> Decision<Sending> {
        match command {
            // The primary says that it takes a database.
            Command::StartLogical { .. } | Command::CreateLogicalSlot { .. }
                if standing.is_none() =>
            {
                Decision::Pass
            }
            Command::StartLogical {
                slot,
                start,
                options,
            } => {
                let Some(standing) = standing else {
                    return Decision::Pass;
                };
                let request = Request {
                    options: stream_options::parse(
                        &standing.database,
                        stream_options::Server {
                            major: facts.major(),
                            encoding: &facts.server_encoding,
                            client_encoding: &standing.written.encoding,
                            output: standing.written.output.as_ref(),
                        },
                        options,
                    ),
                    facts: facts.clone(),
                    standing: standing.clone(),
                    slot: slot.clone(),
                    start: *start,
                };
                self.start(request).await
            }
            Command::CreateLogicalSlot { slot, .. } | Command::CreatePhysicalSlot { slot, .. } => {
                self.if_ours(slot, |slot| exists(&slot.name))
            }
            Command::ReadReplicationSlot { slot } => self.if_ours(slot, |_| not_read()),
            Command::StartReplication {
                slot: Some(slot), ..
            } => self.if_ours(slot, |slot| match slot.active() {
                Some(active) => in_use(&slot.name, active.pid),
                None => not_physical(),
            }),
            Command::DropReplicationSlot { slot, wait } => self.drop_slot(facts, slot, *wait).await,
            Command::AlterReplicationSlot { slot, options } => {
                self.alter(facts, slot, options).await
            }
            _ => Decision::Pass,
        }
    }

    fn identify(&self, standing: &Standing) -> Option<Vec<u8>> {
        self.identity_of(standing)
    }

    fn listed(&self) -> Vec<Listed> {
        self.listed_slots()
    }

    async fn act(&self, facts: &Facts, act: &Act) -> Result<(), Report> {
        self.act_on(facts, act).await
    }

    async fn short_of(&self, scarce: Scarce) -> bool {
        let relay = self.0.clone();
        // libpq blocks.
        let given = tokio::task::spawn_blocking(move || relay.give_up(scarce));
        given.await.unwrap_or(false)
    }

    fn opened(&self, facts: &Facts) -> Terminated {
        self.0.clients().opened(facts)
    }

    fn keeps_connections(&self) -> bool {
        self.0.config().keep_connections
    }

    fn left_primary(&self, facts: &Facts) {
        self.0.clients().left_primary(facts.id);
    }

    fn hears_cancel(&self, facts: &Facts) -> Canceled {
        self.0.canceled(facts.id)
    }

    fn cancel(&self, process: u32, secret: &[u8]) -> bool {
        self.0.clients().cancel(process, secret)
    }

    fn closed(&self, facts: &Facts) {
        self.0.clients().closed(facts.id);
    }
}

/// One `START_REPLICATION`.
struct Request {
    facts: Facts,
    standing: Standing,
    slot: String,
    start: Lsn,
    options: Result<StreamOptions, Report>,
}

/// Whether a session would get values written as the relay's streams have them.
///
/// Positive `extra_float_digits` are all the same: the shortest text that is the same number.
fn writes_alike(standing: &Standing) -> bool {
    let written = &standing.written;
    let dates = written.dates.split(',').next();
    dates == Some("ISO") && written.intervals == "postgres" && written.float_digits > 0
}

fn error(report: Report) -> Decision<Sending> {
    reply(&[Backend::ErrorResponse(report)])
}

fn reply(messages: &[Backend<'_>]) -> Decision<Sending> {
    let mut out = Vec::new();
    for message in messages {
        message.encode(&mut out);
    }
    Backend::ReadyForQuery(b'I').encode(&mut out);
    Decision::Reply(out)
}

/// A group as one that slots may be sent to.
fn fitting_of(group: &Group) -> Fitting {
    Fitting {
        name: group.name().to_owned(),
        begins: group.start().max(group.log().oldest()),
    }
}

/// Whether a slot serves the initial synchronisation of one table:
/// `pg_SUBSCRIPTION_sync_TABLE_SYSTEM`.
fn synchronises_a_table(slot: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some((subscription, rest)) = slot
        .strip_prefix("pg_")
        .and_then(|rest| rest.split_once("_sync_"))
    else {
        return false;
    };
    let mut rest = rest.split('_');
    digits(subscription)
        && rest.next().is_some_and(digits)
        && rest.next().is_some_and(digits)
        && rest.next().is_none()
}

impl Sessions {
    /// An error about a slot that the relay has.
    fn if_ours(&self, slot: &str, report: impl FnOnce(&Slot) -> Report) -> Decision<Sending> {
        let slot = self.0.slots().get(slot);
        slot.map_or(Decision::Pass, |slot| error(report(&slot)))
    }

    async fn start(&self, request: Request) -> Decision<Sending> {
        let relay = self.0.clone();
        let role = request.standing.role_oid;
        relay.clients().is_role(request.facts.id, role);
        if let Some(begun) = relay.as_it_is(&request) {
            return begun.map_or_else(error, Decision::Stream);
        }
        let name = request.slot.clone();
        // A task of its own: a client that leaves must not leave anything half made, nor let
        // another begin meanwhile. libpq blocks.
        let begin = tokio::spawn(async move {
            let slot = relay.making_slot(&request.slot).await;
            let group = match &request.options {
                Ok(StreamOptions::Shared(key)) => Some(relay.making_group(key).await),
                _ => None,
            };
            let begin = {
                let relay = relay.clone();
                move || match relay.slots().get(&request.slot) {
                    Some(slot) => relay.go_on(&slot, request),
                    None => relay.adopt(request),
                }
            };
            let begun = tokio::task::spawn_blocking(begin).await;
            drop((group, slot));
            begun
        });
        match begin.await.and_then(std::convert::identity) {
            Ok(Ok(streaming)) => Decision::Stream(streaming),
            Ok(Err(Refusal::Pass(why))) => {
                info!(slot = name, why, "passed through to the primary");
                Decision::Pass
            }
            Ok(Err(Refusal::Error(report))) => error(*report),
            Err(failed) => error(Report::error("XX000", failed.to_string())),
        }
    }

    async fn alter(
        &self,
        facts: &Facts,
        name: &str,
        options: &[(String, Option<String>)],
    ) -> Decision<Sending> {
        let relay = &self.0;
        let version = facts.major();
        let Some(slot) = relay.slots().get(name) else {
            return Decision::Pass;
        };
        if version < ALTERS_SLOTS[0] {
            // The primary says that it does not know the command.
            return Decision::Pass;
        }
        let wanted = match Altered::parse(options, version) {
            Ok(wanted) => wanted,
            Err(report) => return error(report),
        };
        if wanted.failover == Some(true) && !relay.config().failover {
            let report = Report::error(
                "0A000",
                "a replication slot that the relay keeps cannot be a failover slot",
            );
            return error(report.hint(
                "The relay's own slot on the primary decides what survives a failover: \
                 set failover = true in the relay's configuration.",
            ));
        }
        let _making = relay.making_slot(name).await;
        let _in_use = match slot.acquire(facts.id, facts.pid) {
            Ok(in_use) => in_use,
            Err(active) => return error(in_use(name, active.pid)),
        };
        if let Some(two_phase) = wanted.two_phase {
            // With its next START_REPLICATION the slot goes back to the primary.
            if let Err(failed) = relay.slots().note_two_phase(&slot, two_phase) {
                return error(Report::error("58030", failed.to_string()));
            }
        }
        match slot.route().leaves() {
            true => Decision::Pass,
            false => reply(&[Backend::CommandComplete("ALTER_REPLICATION_SLOT")]),
        }
    }

    async fn drop_slot(&self, facts: &Facts, name: &str, wait: bool) -> Decision<Sending> {
        match self.drop_kept(facts, name, wait).await {
            None => Decision::Pass,
            Some(Ok(())) => reply(&[Backend::CommandComplete("DROP_REPLICATION_SLOT")]),
            Some(Err(report)) => error(report),
        }
    }

    /// Drops a slot of the relay; None if there is none of this name.
    async fn drop_kept(&self, facts: &Facts, name: &str, wait: bool) -> Option<Result<(), Report>> {
        let relay = &self.0;
        let began = tokio::time::Instant::now();
        loop {
            let slot = relay.slots().get(name)?;
            match adoption::drop_slot(slot.active(), &slot.route(), slot.is_adopting()) {
                Drop::InUse(pid) if !wait || began.elapsed() >= LONGEST_WAIT => {
                    return Some(Err(in_use(name, pid)));
                }
                Drop::Adopting if began.elapsed() >= LONGEST_SETTLING => {
                    return Some(Err(adopting(name)));
                }
                Drop::InUse(_) | Drop::Adopting => tokio::time::sleep(LOOK_EVERY).await,
                Drop::Remove => match self.remove(facts, &slot) {
                    Ok(false) => {}
                    removed => return Some(dropped(&slot, removed)),
                },
                Drop::RemoveBoth => match self.drop_both(facts, &slot).await {
                    Ok(true) => return Some(dropped(&slot, Ok(true))),
                    Ok(false) => {}
                    Err(report) => return Some(Err(report)),
                },
            }
        }
    }
}

impl Sessions {
    /// Removes a slot that nobody uses. False if somebody else was faster: look again.
    fn remove(&self, facts: &Facts, slot: &Arc<Slot>) -> Result<bool, RelayError> {
        let Ok(_in_use) = slot.acquire(facts.id, facts.pid) else {
            return Ok(false);
        };
        let same = |found: &Slot| std::ptr::eq(found, &raw const **slot);
        self.0.slots().remove_if(&slot.name, same)
    }
}

fn dropped(slot: &Slot, removed: Result<bool, RelayError>) -> Result<(), Report> {
    removed.map_err(|failed| Report::error("58030", failed.to_string()))?;
    info!(slot = slot.name, "dropped");
    slot.end();
    Ok(())
}

/// Why a slot cannot be dropped yet that the relay is taking over.
fn adopting(slot: &str) -> Report {
    Report::error(
        "55006",
        format!(
            "replication slot \"{slot}\" is being taken over from the primary, which still has it"
        ),
    )
    .hint("Try again once the primary answers the relay.")
}

/// A server's words, as those that follow.
fn not_read() -> Report {
    let message = "cannot use READ_REPLICATION_SLOT with a logical replication slot";
    Report::error("0A000", message)
}

fn not_physical() -> Report {
    let message = "cannot use a logical replication slot for physical replication";
    Report::error("55000", message)
}

fn not_of_database(slot: &Slot) -> Report {
    let name = &slot.name;
    let message = format!("replication slot \"{name}\" was not created in this database");
    Report::error("55000", message)
}

fn in_use(slot: &str, pid: u32) -> Report {
    Report::error(
        "55006",
        format!("replication slot \"{slot}\" is active for PID {pid}"),
    )
}

impl Relay {
    /// Serves a slot that is the relay's and whose subscriber asks for what it did before:
    /// nothing has to be made, and the primary need not be there. None if it is not so
    /// simple.
    fn as_it_is(&self, request: &Request) -> Option<Result<Sending, Report>> {
        let slot = self.slots().get(&request.slot)?;
        let route = slot.route();
        let group = self.group(&route.group)?;
        let Ok(StreamOptions::Shared(key)) = &request.options else {
            return None;
        };
        let simple = route.next.is_none()
            && !slot.is_two_phase()
            && group.key() == key
            && slot.database == request.standing.database
            && group.database_oid() == Some(request.standing.database_oid)
            && writes_alike(&request.standing);
        if !simple {
            return None;
        }
        let taken = match slot.acquire(request.facts.id, request.facts.pid) {
            Ok(taken) => taken,
            Err(active) => return Some(Err(in_use(&slot.name, active.pid))),
        };
        // Whoever had it until now may have sent it elsewhere.
        let still = self.slots().get(&slot.name);
        let still = still.is_some_and(|still| Arc::ptr_eq(&still, &slot))
            && slot.route() == route
            && !slot.is_two_phase();
        still.then(|| Ok(self.streaming(taken, group, None, request.start)))
    }

    /// Serves a slot that is the relay's.
    fn go_on(&self, slot: &Arc<Slot>, request: Request) -> Result<Sending, Refusal> {
        let Request {
            facts, standing, ..
        } = &request;
        // In the order in which a server looks.
        let in_use = slot
            .acquire(facts.id, facts.pid)
            .map_err(|active| in_use(&slot.name, active.pid))?;
        let of_slot = self.group(&slot.route().group);
        if slot.database != standing.database || !self.are_in_database(of_slot, standing)? {
            return Err(not_of_database(slot).into());
        }
        let options = request.options?;
        if options == StreamOptions::TwoPhase {
            self.slots().note_two_phase(slot, true)?;
        }
        let choice = self.choose(slot, &request.standing, &options)?;
        if choice == Choice::GiveBack {
            self.hand_back(slot, request.start)?;
            return Err(Refusal::Pass("the slot is the primary's again".to_owned()));
        }
        let route = slot.route();
        let group = self.group_of(slot, &route.group)?;
        let next = match route.next {
            Some(next) if next.group == PRIMARY => Some(Next::Primary(next.at)),
            Some(next) => Some(Next::Group(self.group_of(slot, &next.group)?, next.at)),
            None => None,
        };
        let next_group = match &next {
            Some(Next::Group(next, _)) => Some(next.clone()),
            _ => None,
        };
        let groups = [Some(group.clone()), next_group].into_iter().flatten();
        if !self.are_in_database(groups, &request.standing)? {
            return Err(not_of_database(slot).into());
        }
        Ok(self.streaming(in_use, group, next, request.start))
    }

    /// Whether the groups are of the session's database, and not of another that had its name.
    fn are_in_database(
        &self,
        groups: impl IntoIterator<Item = Arc<Group>>,
        standing: &Standing,
    ) -> Result<bool, RelayError> {
        for group in groups {
            if group.database_oid().is_none() {
                // An earlier version did not note it. The group's slot tells.
                let mut upstream = self.primary().connect_for_sql(&standing.database)?;
                let slot = upstream.slot(group.upstream_slot())?;
                let database = slot.and_then(|slot| slot.database);
                if database.as_ref() == Some(&standing.database) {
                    group.note_database(upstream.database_oid()?)?;
                }
            }
            if group.database_oid() != Some(standing.database_oid) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Does what [`routes::choose`] says until the slot has the route that it says, or is to be
    /// given back.
    fn choose(
        &self,
        slot: &Slot,
        standing: &Standing,
        options: &StreamOptions,
    ) -> Result<Choice, Refusal> {
        let mut key = match options {
            StreamOptions::Shared(key) if writes_alike(standing) && !slot.is_two_phase() => {
                Some(key)
            }
            _ => None,
        };
        if let Some(wanted) = key.filter(|key| self.groups_for(key).is_empty()) {
            let mut upstream = self.primary().connect_for_sql(&wanted.database)?;
            if let Some(why) = wanted.output.refused(&mut upstream)? {
                info!(slot = slot.name, why, "goes back to the primary");
                key = None;
            }
        }
        loop {
            let groups = key.map(|key| self.groups_for(key));
            let wanted = match &groups {
                Some(groups) if self.makes_groups() || !groups.is_empty() => {
                    Wanted::Groups(groups.iter().map(|group| fitting_of(group)).collect())
                }
                _ => Wanted::Primary,
            };
            let now = slot.route();
            let choice = routes::choose(now.clone(), slot.confirmed(), &wanted, None);
            match (&choice, key) {
                (Choice::Read(route), _) if *route == now => return Ok(choice),
                (Choice::Read(route), _) => {
                    let begins = |name: &str| Some(fitting_of(&*self.group(name)?).begins);
                    let reaches = || routes::reaches(&now, route, slot.confirmed(), begins);
                    if self.slots().reroute(slot, route.clone(), reaches)? {
                        info!(slot = slot.name, from = ?now, to = ?route, "the subscription was altered");
                        return Ok(choice);
                    }
                }
                (Choice::MakeGroup { like }, Some(key)) => {
                    let like = self.group_of(slot, like)?;
                    self.make_group(key, Origin::Slot(like.upstream_slot()))?;
                }
                (Choice::Copy { group } | Choice::MakeGroup { like: group }, _) => {
                    self.copy_to_primary(slot, group)?;
                }
                (Choice::GiveBack, _) => return Ok(choice),
            }
        }
    }

    fn streaming(
        &self,
        in_use: InUse,
        group: Arc<Group>,
        next: Option<Next>,
        start: Lsn,
    ) -> Sending {
        let session = in_use.slot().active().map(|active| active.session);
        // A session that has left meanwhile is not told anything.
        let terminated = session
            .and_then(|session| self.clients().terminated(session))
            .unwrap_or_else(|| watch::channel(None).1);
        Sending {
            from: adoption::first_key(in_use.slot().confirmed(), start),
            in_use,
            group,
            next,
            stop: self.stopping(),
            terminated,
            canceled: self.canceled(session.unwrap_or_default()),
        }
    }

    /// What tells a session to cancel its command; one that has left is not told.
    fn canceled(&self, session: u64) -> Canceled {
        let canceled = self.clients().canceled(session);
        canceled.unwrap_or_else(|| watch::channel(()).1)
    }

    fn group_of(&self, slot: &Slot, name: &str) -> Result<Arc<Group>, Report> {
        self.group(name).ok_or_else(|| {
            if let Some(damaged) = self.damaged(name) {
                return Report::error(
                    "58030",
                    format!(
                        "group \"{name}\" of replication slot \"{}\" cannot go on: {damaged}",
                        slot.name
                    ),
                );
            }
            Report::error(
                "55000",
                format!(
                    "replication slot \"{}\" belongs to group \"{name}\", which is gone",
                    slot.name
                ),
            )
            .hint("Drop the subscription and create it again with its initial copy.")
        })
    }

    /// Takes a slot over from the primary.
    fn adopt(&self, request: Request) -> Result<Sending, Refusal> {
        let pass = |why: &str| Err(Refusal::Pass(why.to_owned()));
        let (facts, name) = (&request.facts, &request.slot);
        if synchronises_a_table(name) {
            return pass("initial synchronization of a table");
        }
        let key = match request.options {
            Ok(StreamOptions::Shared(key)) => key,
            Ok(StreamOptions::TwoPhase) => return pass(adoption::TWO_PHASE),
            Ok(StreamOptions::Own(why)) => return pass(why),
            Err(_) => return pass("options that pgoutput refuses"),
        };
        if !writes_alike(&request.standing) {
            return pass("another DateStyle, IntervalStyle or extra_float_digits");
        }
        let database = &request.standing.database;
        let mut upstream = self.primary().connect_for_sql(database)?;
        let found = upstream.slot(name)?;
        let failover = self.config().failover;
        let confirmed = match adoption::verdict(found.as_ref(), database, failover) {
            Verdict::Adopt(confirmed) => confirmed,
            Verdict::Pass(why) => return pass(why),
            Verdict::InUse(pid) => return Err(in_use(name, pid).into()),
        };
        let group = match self.groups_for(&key).into_iter().next() {
            Some(group) => group,
            None if self.makes_groups() => {
                if let Some(why) = key.output.refused(&mut upstream)? {
                    return Err(Refusal::Pass(why));
                }
                self.make_group(&key, Origin::Slot(name))?
            }
            None => return pass("no group has its publications, and auto_groups is off"),
        };
        if let Phase::Failed(_) = *group.phase().borrow() {
            return pass("its group cannot go on");
        }
        if !self.are_in_database([group.clone()], &request.standing)? {
            return pass("its group is of another database that had this name");
        }
        let taken = self.take_over(&mut upstream, name, &group, confirmed)?;
        let slot = match taken {
            Ok(slot) => slot,
            Err(why) => return pass(why),
        };
        info!(slot = name, group = group.name(), at = %confirmed, "adopted");
        let in_use = slot
            .acquire(facts.id, facts.pid)
            .map_err(|active| in_use(name, active.pid))?;
        Ok(self.streaming(in_use, group, None, request.start))
    }

    /// From the primary's slots to the relay's, as the adoption decides; or why the primary
    /// keeps it.
    fn take_over(
        &self,
        upstream: &mut Connection,
        name: &str,
        group: &Group,
        confirmed: Lsn,
    ) -> Result<Result<Arc<Slot>, &'static str>, RelayError> {
        let book = self.slots();
        let mut adoption = Adoption::begin();
        let mut slot = None;
        loop {
            let event = match (adoption.poll(), &slot) {
                (Action::Add, _) => {
                    let route = Route {
                        group: group.name().to_owned(),
                        next: None,
                    };
                    let (database, now) = (&group.key().database, clock::unix_us());
                    let reaches =
                        || adoption::reaches(group.start(), group.log().oldest(), confirmed);
                    match book.add(name, database, route, confirmed, now, reaches)? {
                        Ok(added) => {
                            slot = Some(added);
                            Event::Done
                        }
                        Err(why) => why.into(),
                    }
                }
                (Action::DropAtPrimary, _) => drop_at_primary(upstream, name),
                (Action::Settle, Some(slot)) => {
                    book.adopted(slot)?;
                    Event::Done
                }
                (Action::TakeBack, _) => {
                    book.remove(name)?;
                    Event::Done
                }
                (Action::Serve, Some(slot)) => return Ok(Ok(slot.clone())),
                (Action::Pass(why), _) => return Ok(Err(why)),
                (Action::Settle | Action::Serve, None) => return Ok(Err("it was never added")),
            };
            adoption.handle(event);
        }
    }

    /// Makes a group that is not configured.
    fn make_group(&self, key: &GroupKey, origin: Origin<'_>) -> Result<Arc<Group>, RelayError> {
        self.in_need(|| self.make_named_group(&key.automatic_name(), key, Plugin::Auto, origin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_initial_synchronisation_are_known_by_name() {
        assert!(synchronises_a_table(
            "pg_16394_sync_16385_7123456789012345678"
        ));
        for name in [
            "sub",
            "pg_sync_1_2",
            "pg_1_sync_2",
            "pg_1_sync_2_3_4",
            "pg_x_sync_2_3",
            "pg_1_sync__3",
        ] {
            assert!(!synchronises_a_table(name), "{name}");
        }
    }
}
