//! The table that commits insert into, on the primary and on every subscriber of its database.
//!
//! A subscriber that gets changes of a table that it does not have fails, and fails again. So
//! every logical slot of the database must belong to a subscriber that was named, and the table
//! exists on all of them before it is published. A subscription that has tables to be refreshed
//! is left alone: refreshing it for our table would take those as copied.

use std::thread;
use std::time::{Duration, Instant};

use lockstep_client::{Connection, Purpose, quote};
use lockstep_wire::Lsn;

use crate::heartbeat::position;
use crate::node::Node;
use crate::replica;
use crate::{LagError, Result};

const CATCH_UP: Duration = Duration::from_secs(60);

/// Creates the table, in place of one that a killed run has left.
const MAKE: &str = "DROP SCHEMA IF EXISTS lockstep_probe CASCADE; CREATE SCHEMA lockstep_probe; \
     CREATE TABLE lockstep_probe.commits (id bigint, filler text)";

const REMOVE: &str = "DROP SCHEMA IF EXISTS lockstep_probe CASCADE";

const NAME: &str = "lockstep_probe.commits";

/// Names of the slots of a relay's groups begin like this.
const RELAY_PREFIX: &str = "lockstep_";

pub(super) struct Table {
    subscribers: Vec<Subscriber>,
    /// Publications that the table was added to, quoted.
    added: Vec<String>,
}

struct Subscriber {
    server: Connection,
    /// Quoted.
    subscription: String,
    /// Publications as `pg_subscription` lists them.
    publications: Vec<String>,
    slot: String,
}

impl Table {
    /// Creates the table, or says in `missing` why it cannot.
    pub(super) fn create(
        primary: &mut Connection,
        nodes: &[Node],
        application_name: &str,
        missing: &mut Vec<String>,
    ) -> Result<Option<Self>> {
        if nodes.is_empty() {
            return Ok(None);
        }
        let mut subscribers = Vec::new();
        for node in nodes {
            let server = Connection::connect(&node.conninfo, Purpose::Sql, application_name)?;
            subscribers.extend(of_node(server, node, missing)?);
        }
        if subscribers.is_empty() && missing.is_empty() {
            return Ok(None);
        }
        missing.extend(strangers(primary, &subscribers)?);
        for subscriber in &mut subscribers {
            missing.extend(unrefreshed(primary, subscriber)?);
        }
        if !missing.is_empty() {
            return Ok(None);
        }
        let mut table = Self {
            subscribers,
            added: Vec::new(),
        };
        if let Err(error) = table.make(primary) {
            let _ = table.drop(primary);
            return Err(error);
        }
        Ok(Some(table))
    }

    fn make(&mut self, primary: &mut Connection) -> Result<()> {
        for subscriber in &mut self.subscribers {
            subscriber.server.query(MAKE)?;
        }
        primary.query(MAKE)?;
        for subscriber in &mut self.subscribers {
            let listed = quoted_list(&subscriber.publications)?;
            let published = primary.query(&format!(
                "SELECT 1 FROM pg_publication_tables WHERE pubname IN ({listed}) \
                 AND schemaname || '.' || tablename = '{NAME}'"
            ))?;
            if let (true, Some(first)) = (published.is_empty(), subscriber.publications.first()) {
                let name = quote::identifier("publication", first)?;
                primary.query(&format!("ALTER PUBLICATION {name} ADD TABLE {NAME}"))?;
                self.added.push(name);
            }
        }
        self.refresh()
    }

    fn refresh(&mut self) -> Result<()> {
        for subscriber in &mut self.subscribers {
            let name = &subscriber.subscription;
            subscriber.server.query(&format!(
                "ALTER SUBSCRIPTION {name} REFRESH PUBLICATION WITH (copy_data = false)"
            ))?;
        }
        Ok(())
    }

    /// Drops the table on all servers, as far as that is possible, and returns the first error.
    /// A subscriber that has not applied everything keeps its table, because it would fail
    /// without it.
    pub(super) fn drop(mut self, primary: &mut Connection) -> Result<()> {
        let mut result = primary.query(REMOVE).map(drop).map_err(Into::into);
        result = result.and(self.refresh());
        let end = position(primary.query("SELECT pg_current_wal_flush_lsn()")?)?;
        for subscriber in &mut self.subscribers {
            let removed = match has_confirmed(primary, &subscriber.slot, end)? {
                true => subscriber
                    .server
                    .query(REMOVE)
                    .map(drop)
                    .map_err(Into::into),
                false => Err(LagError::Unfit(format!(
                    "subscription {} has not caught up, so schema lockstep_probe stays there; later: DROP SCHEMA lockstep_probe CASCADE",
                    subscriber.subscription
                ))),
            };
            result = result.and(removed);
        }
        result
    }
}

fn has_confirmed(primary: &mut Connection, slot: &str, end: Lsn) -> Result<bool> {
    let literal = quote::sql_literal("slot", slot)?;
    let sql =
        format!("SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = {literal}");
    let began = Instant::now();
    while began.elapsed() < CATCH_UP {
        if position(primary.query(&sql)?)? >= end {
            return Ok(true);
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(false)
}

/// The enabled subscription of a node, if it has exactly one.
fn of_node(
    mut server: Connection,
    node: &Node,
    missing: &mut Vec<String>,
) -> Result<Option<Subscriber>> {
    let rows = server.query(
        "SELECT subname, subslotname, array_to_string(subpublications, ',') FROM pg_subscription \
         WHERE subenabled AND subslotname IS NOT NULL \
         AND subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())",
    )?;
    // The target of a replica of Lockstep has none.
    let kept = server.query(&format!("SELECT {}", replica::kept()))?;
    let is_target = kept
        .into_iter()
        .flatten()
        .flatten()
        .any(|kept| kept != "absent");
    if rows.is_empty() && is_target {
        return Ok(None);
    }
    let several = rows.len() > 1;
    let mut fields = rows.into_iter().flatten().flatten();
    let (name, slot, publications) = (fields.next(), fields.next(), fields.next());
    match (name, slot, publications) {
        (Some(name), Some(slot), Some(publications)) if !several => Ok(Some(Subscriber {
            server,
            subscription: quote::identifier("subscription", &name)?,
            publications: publications.split(',').map(str::to_owned).collect(),
            slot,
        })),
        _ => {
            missing.push(format!(
                "{} has not exactly one subscription that runs, so it is not measured",
                node.name
            ));
            Ok(None)
        }
    }
}

/// Logical slots of the database that belong to no subscriber that was named.
fn strangers(primary: &mut Connection, subscribers: &[Subscriber]) -> Result<Option<String>> {
    let rows = primary.query(
        "SELECT slot_name FROM pg_replication_slots WHERE slot_type = 'logical' AND NOT temporary \
         AND database = current_database()",
    )?;
    let slots: Vec<String> = rows.into_iter().flatten().flatten().collect();
    let unknown: Vec<&str> = slots
        .iter()
        .filter(|slot| {
            let is_named = subscribers
                .iter()
                .any(|subscriber| subscriber.slot == **slot);
            // The table does not get into the publication of a replica of Lockstep.
            !is_named && replica::named(slot).is_none()
        })
        .map(String::as_str)
        .collect();
    let relayed = match unknown.iter().any(|slot| slot.starts_with(RELAY_PREFIX)) {
        true => "; subscribers behind a relay cannot be measured: commits wait for the relay",
        false => "",
    };
    Ok((!unknown.is_empty()).then(|| {
        format!(
            "slots {} belong to no --subscriber: they could get changes of a table that their consumers do not have; name all subscribers of this database{relayed}",
            unknown.join(", ")
        )
    }))
}

/// A subscription whose publications list other tables than it has.
fn unrefreshed(primary: &mut Connection, subscriber: &mut Subscriber) -> Result<Option<String>> {
    let listed = quoted_list(&subscriber.publications)?;
    let names = |rows: Vec<Vec<Option<String>>>| {
        let mut names: Vec<String> = rows.into_iter().flatten().flatten().collect();
        names.retain(|name| name != NAME);
        names.sort();
        names.dedup();
        names
    };
    let published = names(primary.query(&format!(
        "SELECT schemaname || '.' || tablename FROM pg_publication_tables WHERE pubname IN ({listed})"
    ))?);
    let literal = quote::sql_literal("slot", &subscriber.slot)?;
    let subscribed = names(subscriber.server.query(&format!(
        "SELECT n.nspname || '.' || c.relname FROM pg_subscription_rel r \
         JOIN pg_subscription s ON s.oid = r.srsubid JOIN pg_class c ON c.oid = r.srrelid \
         JOIN pg_namespace n ON n.oid = c.relnamespace WHERE s.subslotname = {literal}"
    ))?);
    Ok((published != subscribed).then(|| {
        format!(
            "subscription {} does not have the tables of its publications: run ALTER SUBSCRIPTION {} REFRESH PUBLICATION first",
            subscriber.subscription, subscriber.subscription
        )
    }))
}

fn quoted_list(names: &[String]) -> Result<String> {
    let quoted: Result<Vec<String>, _> = names
        .iter()
        .map(|name| quote::sql_literal("publication", name))
        .collect();
    Ok(quoted?.join(", "))
}
