//! Signals about tables that a subscriber does not follow although it seems to: rows differ, and
//! no position shows it.

use std::collections::{BTreeMap, BTreeSet};

use super::anew::{Slot, recreated};
use super::left::PROBED;
use super::partitions::{self, Otherwise};
use super::renamed::{self, Renamed};
use super::synchronised::{Copying, copying, uncopied};
use super::{Evidence, Severity, View, identifier, in_database};
use crate::link::Link;
use crate::node::Role;
use crate::point::LinkKind;
use crate::sample::Sample;
use crate::source::Publisher;
use crate::tables::{Followed, Refused, Tables, Why};
use crate::views::Subscription;
use crate::window::NodeWindow;

/// Most tables that are named.
const MOST_NAMED: usize = 5;

/// Share of samples from which a worker is there.
const MOSTLY: f64 = 0.5;

/// Tables of one subscription: those that it follows and that are not published, and those that
/// are published and that it does not follow.
pub(super) struct Difference {
    unpublished: Vec<String>,
    /// Tables that it follows, and that the publisher does not have at all.
    absent: Vec<String>,
    pub(super) renamed: Vec<Renamed>,
    /// Partitioned tables that it follows by other names than those by which they are published.
    pub(super) otherwise: Vec<Otherwise>,
    unfollowed: Vec<String>,
    /// Published tables that the subscriber does not have.
    pub(super) unmade: Vec<String>,
    /// Followed tables that are unlogged on the publisher, so that none of their changes is sent.
    unlogged: Vec<String>,
    /// The publisher and its database.
    pub(super) publisher: String,
    /// The first publication that the subscription follows.
    publication: String,
}

/// The server that publishes for a link, and the database that it does so from.
pub(super) fn publisher<'a>(view: &View<'a>, link: &Link<'a>) -> Option<(&'a NodeWindow, String)> {
    let last = link.upstream.last()?;
    match link.upstream_group() {
        Some(group) => {
            let group = last.relay.as_ref()?.group(group)?;
            let primary = view.links.iter().find(|above| {
                above.is_to_relay() && above.group.as_deref() == Some(group.name.as_str())
            });
            Some((primary?.upstream, group.database.clone()))
        }
        None => match last.slot(link.slot.as_deref()?) {
            Some(slot) => Some((link.upstream, slot.database.clone()?)),
            None => meant(view, link),
        },
    }
}

/// The publisher of a subscription without a slot: the server and the database that it connects to, if that
/// leads to the link's upstream for certain.
pub(super) fn meant<'a>(view: &View<'a>, link: &Link<'a>) -> Option<(&'a NodeWindow, String)> {
    let meant = connects_to(link)?;
    let server = view.window.server_at(link.replica?, &meant.address)?;
    let database = meant.database.clone()?;
    (server.name == link.upstream.name).then_some((link.upstream, database))
}

/// Where the subscription of a link connects to, if its subscriber's role may see that.
pub(super) fn connects_to<'a>(link: &Link<'a>) -> Option<&'a Publisher> {
    let last = link.replica?.last()?;
    last.background
        .publishers
        .get(link.subscription.as_deref()?)
}

/// An error says why it cannot be known: the publisher may have been asked in another database.
pub(super) fn difference<'a>(view: &View<'a>, link: &Link<'a>) -> Result<Difference, String> {
    let found = publisher(view, link);
    let (publisher, database) = found.ok_or("its publisher is not known")?;
    let name = &publisher.name;
    if publisher.facts.database != database {
        return Err(format!(
            "{name} was asked in another database than {database}, which has its publications"
        ));
    }
    let last = |node: &'a NodeWindow| node.last().map(|last| &*last.tables);
    let tables = last(publisher).zip(link.replica.and_then(last));
    let (theirs, ours) = tables.ok_or("one of both was not asked")?;
    if theirs.cut_off || ours.cut_off {
        return Err("there are too many tables to compare".to_owned());
    }
    let subscription = link.subscription.as_deref().unwrap_or_default();
    let followed = ours.subscriptions.get(subscription);
    let followed = followed.ok_or("it was made after its tables were asked for")?;
    let published = theirs.published(&followed.publications);
    let published = published.ok_or_else(|| {
        let names = some(&followed.publications);
        format!("not all of its publications ({names}) are there on {name}")
    })?;
    let tables: BTreeSet<&String> = followed.tables.iter().collect();
    let list = |one: &BTreeSet<&String>, other| {
        let names = one.difference(other).filter(|name| **name != PROBED);
        names.map(|name| name.to_string()).collect()
    };
    let (mut unpublished, mut unfollowed): (Vec<String>, Vec<String>) =
        (list(&tables, &published), list(&published, &tables));
    // Without a list of all tables nobody knows which are there.
    let there = theirs.there.as_ref();
    let is_absent = |table: &String| there.is_some_and(|there| !there.contains(table));
    let mut absent: Vec<String> = unpublished
        .iter()
        .filter(|it| is_absent(it))
        .cloned()
        .collect();
    unpublished.retain(|table| !is_absent(table));
    let renamed = renamed::pairs(&absent, &unfollowed, theirs, ours);
    absent.retain(|table| renamed.iter().all(|it| it.old != *table));
    unfollowed.retain(|table| renamed.iter().all(|it| it.new != *table));
    unfollowed.retain(|table| !partitions::comes_via_root(table, followed, theirs));
    let otherwise = partitions::otherwise(&unpublished, &unfollowed, followed, theirs);
    unpublished.retain(|table| otherwise.iter().all(|it| !it.followed.contains(table)));
    unfollowed.retain(|table| otherwise.iter().all(|it| !it.published.contains(table)));
    let here = ours.there.as_ref();
    let is_unmade = |table: &String| here.is_some_and(|here| !here.contains(table));
    let (unmade, unfollowed) = unfollowed.into_iter().partition(is_unmade);
    let (unlogged, unpublished) = unpublished
        .into_iter()
        .partition(|table| theirs.unlogged.contains(table));
    Ok(Difference {
        unpublished,
        unmade,
        unlogged,
        absent,
        renamed,
        otherwise,
        unfollowed,
        publisher: in_database(publisher, &database),
        publication: followed.publications.first().cloned().unwrap_or_default(),
    })
}

/// Whether it is known which tables of a subscription are published; an error says why not.
pub(crate) fn difference_known<'a>(view: &View<'a>, link: &Link<'a>) -> Result<(), String> {
    difference(view, link).map(|_| ())
}

/// The first of these names, in words.
pub(super) fn some(names: &[String]) -> String {
    let first: Vec<&str> = names.iter().take(MOST_NAMED).map(String::as_str).collect();
    match names.len().saturating_sub(MOST_NAMED) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// Evidence for each link with such tables.
pub(super) fn of_tables(
    view: &View<'_>,
    fact: &'static str,
    choose: fn(&Difference) -> &[String],
    words: &str,
) -> Vec<Evidence> {
    let links = view.links.iter();
    let links = links.filter(|link| link.kind == LinkKind::Logical);
    let mut found = Vec::new();
    for link in links {
        let Ok(difference) = difference(view, link) else {
            continue;
        };
        let tables = choose(&difference);
        if tables.is_empty() {
            continue;
        }
        let number = match tables.len() > MOST_NAMED {
            true => "many_tables",
            false => "few_tables",
        };
        found.push(
            Evidence::of(link, 0.0)
                .severity(Severity::Risk)
                .fact(
                    fact,
                    tables.len() as f64,
                    format!("{words}: {}", some(tables)),
                )
                .name("publisher", &difference.publisher)
                .name("publication", &difference.publication)
                .name("tables", some(tables))
                .name("left_out", some(tables))
                .name(number, some(tables)),
        );
    }
    found
}

/// What the subscription of a link follows, and the tables of its publisher; None if one of both was not
/// asked.
pub(super) fn followed<'v>(view: &View<'v>, link: &Link<'v>) -> Option<(&'v Followed, &'v Tables)> {
    let (publisher, database) = publisher(view, link)?;
    let theirs = publisher
        .last()
        .filter(|_| publisher.facts.database == database)?;
    let ours = link.replica?.last()?;
    let followed = ours
        .tables
        .subscriptions
        .get(link.subscription.as_deref()?)?;
    Some((followed, &theirs.tables))
}

/// The severity of what stops a subscription's worker once a change comes, by whether it is there. One that
/// somebody has disabled is not there for that reason.
pub(super) fn by_worker(link: &Link<'_>) -> Severity {
    let row = link.replica.and_then(|node| link.subscribed(node.last()?));
    let by_error = |row: &Subscription| row.disable_on_error && row.apply_errors > 0;
    if row.is_some_and(|row| !row.enabled && !by_error(row)) {
        return Severity::Risk;
    }
    let worker = |sample: &Sample| link.subscribed(sample).is_some_and(|row| row.pid.is_some());
    let errors = |sample: &Sample| Some(link.subscribed(sample)?.apply_errors as f64);
    let fails = link
        .replica
        .is_some_and(|node| node.share(worker) < MOSTLY || node.growth(errors) > 0.0);
    match fails {
        true => Severity::Lag,
        false => Severity::Risk,
    }
}

/// The severity of what stops a subscription's worker and the copy of these tables.
pub(super) fn by_copy_or_worker<'t>(
    link: &Link<'_>,
    mut tables: impl Iterator<Item = &'t String>,
) -> Severity {
    let copied = uncopied(link);
    let fails = copying(link) == Some(Copying::Fails) && tables.any(|table| copied.contains(table));
    match fails {
        true => Severity::Lag,
        false => by_worker(link),
    }
}

/// Published columns that the subscriber's tables do not take.
#[derive(Default)]
struct Untaken<'v> {
    /// Columns that are not there, by table and name, with their types on the publisher.
    missing: BTreeMap<(&'v String, &'v String), &'v String>,
    /// Columns that the subscriber generates itself, in the same form.
    generated: BTreeMap<(&'v String, &'v String), &'v String>,
}

fn untaken<'v>(followed: &'v Followed, theirs: &'v Tables, ours: &'v Tables) -> Untaken<'v> {
    let mut found = Untaken::default();
    let publications = followed.publications.iter();
    let tables = publications.flat_map(|name| theirs.columns.get(name));
    for (table, columns) in tables.flatten() {
        let held = ours.held.get(table);
        let Some(held) = held.filter(|_| followed.tables.contains(table)) else {
            continue;
        };
        for (column, kind) in columns
            .iter()
            .filter(|(column, _)| !held.contains_key(*column))
        {
            let place = match ours.generates(table, column).is_some() {
                true => &mut found.generated,
                false => &mut found.missing,
            };
            place.insert((table, column), kind);
        }
    }
    found
}

/// Tables of a link's subscription that lack a published column, or generate it.
pub(super) fn lacking_tables(view: &View<'_>, link: &Link<'_>) -> BTreeSet<String> {
    let ours = link.replica.and_then(NodeWindow::last);
    let Some(((followed, theirs), ours)) = followed(view, link).zip(ours) else {
        return BTreeSet::new();
    };
    let Untaken { missing, generated } = untaken(followed, theirs, &ours.tables);
    let all = missing.into_keys().chain(generated.into_keys());
    all.map(|(table, _)| table.clone()).collect()
}

/// Columns that are published, and that the subscriber's table does not have or generates itself: its worker
/// refuses changes of that table.
pub(super) fn columns(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for link in view.links.iter().filter(|link| link.subscription.is_some()) {
        let ours = link.replica.and_then(NodeWindow::last);
        let Some(((followed, theirs), ours)) = followed(view, link).zip(ours) else {
            continue;
        };
        let Untaken { missing, generated } = untaken(followed, theirs, &ours.tables);
        let lack = match (missing.is_empty(), generated.is_empty()) {
            (true, true) => continue,
            (false, true) => "missing",
            (true, false) => "generated",
            (false, false) => "missing or generated",
        };
        let places = missing.keys().chain(generated.keys());
        let mut evidence = Evidence::of(link, 1.0)
            .severity(by_copy_or_worker(link, places.map(|(table, _)| *table)))
            .name("lack", lack);
        if !missing.is_empty() {
            evidence = of_missing(evidence, view, link, theirs, &missing);
        }
        if !generated.is_empty() {
            evidence = of_generated(evidence, &ours.tables, &generated);
        }
        found.push(evidence);
    }
    found
}

/// Columns with their tables, in words.
fn of_table<'v>(columns: impl Iterator<Item = &'v (&'v String, &'v String)>) -> Vec<String> {
    let names = columns.map(|(table, column)| format!("{column} of {table}"));
    names.collect()
}

/// Adds columns that are not there, and what makes them.
fn of_missing(
    mut evidence: Evidence,
    view: &View<'_>,
    link: &Link<'_>,
    theirs: &Tables,
    missing: &BTreeMap<(&String, &String), &String>,
) -> Evidence {
    let names = of_table(missing.keys());
    let add = missing.iter().take(MOST_NAMED);
    let add = add
        .map(|((table, column), kind)| format!("ALTER TABLE {table} ADD COLUMN {column} {kind};"));
    // What is of a schema is no type of PostgreSQL's own.
    let kinds = missing.values().take(MOST_NAMED);
    let kinds = kinds.map(|kind| kind.trim_end_matches("[]"));
    let kinds: BTreeSet<&str> = kinds.filter(|kind| kind.contains('.')).collect();
    let ours = link.replica.and_then(NodeWindow::last);
    let known = |kind: &&str| ours.is_some_and(|ours| ours.tables.enums.contains_key(*kind));
    let (enums, others): (Vec<&str>, Vec<&str>) = kinds
        .into_iter()
        .filter(|kind| !known(kind))
        .partition(|kind| theirs.enums.contains_key(*kind));
    let create = enums.iter().filter_map(|kind| {
        let labels = theirs.enums.get(*kind)?;
        Some(format!("CREATE TYPE {kind} AS ENUM ({labels});"))
    });
    let add = create.chain(add).collect::<Vec<_>>().join(" ");
    let renamed = missing
        .keys()
        .filter_map(|(table, column)| renamed::column(view, link, table, column));
    let renamed: Vec<String> = renamed.collect();
    evidence = evidence
        .fact(
            "missing_columns",
            names.len() as f64,
            format!("published columns that it does not have: {}", some(&names)),
        )
        .name("add", add)
        .name("columns", some(&names));
    if !others.is_empty() {
        evidence = evidence.name("types", others.join(", "));
    }
    if !renamed.is_empty() {
        evidence = evidence.name("rename", renamed.join(" "));
    }
    evidence
}

/// Adds columns that are generated here, and what makes them columns that can be written. Only the values of
/// those that are stored can be kept.
fn of_generated(
    mut evidence: Evidence,
    ours: &Tables,
    generated: &BTreeMap<(&String, &String), &String>,
) -> Evidence {
    let names = of_table(generated.keys());
    let words = format!(
        "published columns that it generates itself: {}",
        some(&names)
    );
    evidence = evidence
        .fact("generated_columns", names.len() as f64, words)
        .name("generated", some(&names));
    let first = generated.iter().take(MOST_NAMED);
    let (stored, computed): (Vec<_>, Vec<_>) =
        first.partition(|((table, column), _)| ours.generates(table, column) == Some("s"));
    let written = stored.iter().map(|((table, column), _)| {
        format!("ALTER TABLE {table} ALTER COLUMN {column} DROP EXPRESSION;")
    });
    let anew = computed.iter().map(|((table, column), kind)| {
        format!("ALTER TABLE {table} DROP COLUMN {column}, ADD COLUMN {column} {kind};")
    });
    let [written, anew]: [Vec<String>; 2] = [written.collect(), anew.collect()];
    for (name, statements) in [("written", written), ("anew", anew)] {
        if !statements.is_empty() {
            evidence = evidence.name(name, statements.join(" "));
        }
    }
    evidence
}

/// Most tables of a publication that a remedy names.
const MOST_TABLES: usize = 20;

/// Followed tables that none of these publications has; None if there are none, or more than are named.
fn only_of(followed: &Followed, theirs: &Tables, publications: &[&String]) -> Option<String> {
    let mut published = publications
        .iter()
        .filter_map(|name| theirs.publications.get(*name));
    let others: BTreeSet<&String> = published.by_ref().flatten().collect();
    let tables = followed.tables.iter();
    let own: Vec<&str> = tables
        .filter(|table| !others.contains(table))
        .map(String::as_str)
        .collect();
    (1..=MOST_TABLES)
        .contains(&own.len())
        .then(|| own.join(", "))
}

/// Publications that a subscription follows, and that its publisher does not have.
pub(super) fn publication(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for link in view.links.iter().filter(|link| link.subscription.is_some()) {
        let Some((followed, theirs)) = followed(view, link) else {
            continue;
        };
        let is_there = |name: &&String| theirs.publications.contains_key(*name);
        let (there, gone): (Vec<&String>, Vec<&String>) =
            followed.publications.iter().partition(is_there);
        let Some(first) = gone.first() else { continue };
        let all: Vec<String> = gone.iter().map(|name| identifier(name)).collect();
        let words = format!("publications that are not there: {}", some(&all));
        let mut evidence = Evidence::of(link, 1.0)
            .severity(by_worker(link))
            .fact("missing_publications", all.len() as f64, words)
            .name("publication", first.as_str());
        if let Some(tables) = only_of(followed, theirs, &there).filter(|_| all.len() == 1) {
            evidence = evidence.name("its_tables", tables);
        }
        if let Some((publisher, database)) = publisher(view, link) {
            evidence = evidence.name("publisher", in_database(publisher, &database));
        }
        // It may only be called otherwise.
        let mut others = theirs.publications.iter();
        let has_all = |tables: &BTreeSet<String>| followed.tables.is_subset(tables);
        if let Some((other, _)) = others.find(|(_, tables)| has_all(tables) && !tables.is_empty()) {
            let names = there
                .into_iter()
                .chain([other])
                .map(|name| identifier(name));
            let names: BTreeSet<String> = names.collect();
            let names: Vec<String> = names.into_iter().collect();
            evidence = evidence.name("replacing", names.join(", "));
        }
        // Without its slot another rule says how it is made again.
        let last = link.upstream.last();
        let slot = link.slot.as_deref().and_then(|name| last?.slot(name));
        found.push(match slot {
            Some(_) => recreated(evidence, link, Slot::There),
            None => evidence,
        });
    }
    found
}

/// Reasons for which updates and deletes of published tables are refused, each with the name of its number,
/// whether the table may have a column list, the name that its remedies use, and words.
const REFUSALS: [(Why, Option<bool>, &str, &str, &str); 8] = [
    (
        Why::Unidentified,
        Some(false),
        "unidentified_tables",
        "tables",
        "published tables without primary key or other replica identity",
    ),
    (
        Why::Unidentified,
        Some(true),
        "unidentified_listed_tables",
        "unidentified_listed",
        "tables published with a column list, without primary key or other replica identity",
    ),
    (
        Why::Unused,
        None,
        "unused_keys",
        "unused",
        "published tables whose primary key is not their replica identity (NOTHING, or an index that is gone)",
    ),
    (
        Why::Deferrable,
        None,
        "deferrable_keys",
        "deferrable",
        "published tables whose primary key is deferrable, so that it is no replica identity",
    ),
    (
        Why::Filter,
        None,
        "filtered_tables",
        "filtered",
        "tables with a row filter (WHERE) on columns that are not in their replica identity",
    ),
    (
        Why::List,
        None,
        "listed_tables",
        "listed",
        "tables with a column list that lacks columns of their replica identity",
    ),
    (
        Why::FullList,
        None,
        "full_listed_tables",
        "full_listed",
        "tables with a column list and REPLICA IDENTITY FULL",
    ),
    (
        Why::Generated,
        None,
        "generated_tables",
        "generated",
        "tables with generated columns in their replica identity that are not published",
    ),
];

/// What can be done for tables whose updates and deletes are refused.
pub(super) const REFUSED_REMEDIES: &[&str] = &[
    "on {publisher}: a primary key for {tables}, or ALTER TABLE ... REPLICA IDENTITY FULL, if there can be none: \
     subscribers then search for each row",
    "on {publisher}: a primary key for {unidentified_listed}, of columns that the column list has; REPLICA \
     IDENTITY FULL is refused with a list",
    "on {publisher}: {as_default} the primary key then is the replica identity",
    "on {publisher}: {by_index} until then rows of the table can only be inserted",
    "on {publisher}: ALTER TABLE ... REPLICA IDENTITY FULL for {may_be_full}: the filter may then name any \
     column, and whole old rows go into the WAL",
    "on {publisher}: for {filtered}, in one transaction ALTER PUBLICATION ... DROP TABLE and ADD TABLE with a \
     filter on columns of the replica identity only; or a unique index with these columns too, all NOT NULL, \
     and ALTER TABLE ... REPLICA IDENTITY USING INDEX",
    "on {publisher}: for {listed}, in one transaction ALTER PUBLICATION ... DROP TABLE and ADD TABLE with a list \
     that has these columns too. Subscribers must have them before",
    "on {publisher}: ALTER TABLE ... REPLICA IDENTITY DEFAULT for {full_listed}, with a primary key of columns \
     that the column list has; or publish it without a list",
    "on {publisher}: for {generated}, ALTER PUBLICATION ... SET (publish_generated_columns = stored), if \
     subscribers have these columns; or a replica identity without them: virtual columns are never published",
    "on {publisher}: a publication of their own with publish = 'insert', if their rows never change",
];

/// What gives a table a replica identity, by why it has none, with the name that its remedy uses.
const STATEMENTS: [(Why, &str, Statement); 2] = [
    (Why::Unused, "as_default", as_default),
    (Why::Deferrable, "by_index", by_index),
];

type Statement = fn(&Refused) -> Option<String>;

fn as_default(of: &Refused) -> Option<String> {
    Some(format!(
        "ALTER TABLE {} REPLICA IDENTITY DEFAULT;",
        of.table
    ))
}

/// An index of the key's columns, which are NOT NULL, does what a deferrable key cannot.
fn by_index(of: &Refused) -> Option<String> {
    let (_, name) = renamed::parts(&of.table)?;
    let plain = name.trim_matches('"').replace("\"\"", "\"");
    let index = identifier(&format!("{plain}_identity"));
    let (table, columns) = (&of.table, of.columns.as_ref()?);
    Some(format!(
        "CREATE UNIQUE INDEX {index} ON {table} ({columns}); ALTER TABLE {table} REPLICA IDENTITY USING INDEX {index};"
    ))
}

/// Published tables whose updates and deletes the publisher refuses.
pub(super) fn refused(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    let primaries = view.window.usable();
    for node in primaries.filter(|node| node.role == Role::Primary) {
        let Some(last) = node.last() else { continue };
        // Of a table that a measurement has left, another cause is told.
        let all = last.tables.refused.iter();
        let all: Vec<&Refused> = all.filter(|it| it.table != PROBED).collect();
        if all.is_empty() {
            continue;
        }
        let mut evidence = Evidence::on(node, Severity::Risk)
            .name("publisher", in_database(node, &node.facts.database));
        for (why, listed, figure, name, words) in REFUSALS {
            let those = all
                .iter()
                .copied()
                .filter(|one| one.why == why && listed.is_none_or(|it| it == one.listed));
            let tables: BTreeSet<String> = those.map(named).collect();
            if tables.is_empty() {
                continue;
            }
            let tables: Vec<String> = tables.into_iter().collect();
            evidence = evidence
                .fact(
                    figure,
                    tables.len() as f64,
                    format!("{words}: {}", some(&tables)),
                )
                .name(name, some(&tables));
        }
        for (why, name, statement) in STATEMENTS {
            let those = all.iter().copied().filter(|one| one.why == why);
            let sql: BTreeSet<String> = those.filter_map(statement).collect();
            let sql: Vec<String> = sql.into_iter().take(MOST_NAMED).collect();
            if !sql.is_empty() {
                evidence = evidence.name(name, sql.join(" "));
            }
        }
        let full = all.iter().filter(|it| it.why == Why::Filter && !it.listed);
        let full: BTreeSet<&str> = full.map(|it| it.table.as_str()).collect();
        let full: Vec<String> = full.into_iter().map(str::to_owned).collect();
        if !full.is_empty() {
            evidence = evidence.name("may_be_full", some(&full));
        }
        found.push(evidence);
    }
    found
}

/// A table whose updates are refused, for people: without a column that is in the way, its name only.
fn named(refused: &Refused) -> String {
    let publication = identifier(&refused.publication);
    match &refused.columns {
        Some(columns) => format!("{} ({columns}, in {publication})", refused.table),
        None => refused.table.clone(),
    }
}

pub(super) fn unpublished(view: &View<'_>) -> Vec<Evidence> {
    let words = "tables that the subscription follows and its publications do not have";
    let mut found = of_tables(
        view,
        "unpublished_tables",
        |tables| &tables.unpublished,
        words,
    );
    let words = "tables that the subscription follows and that are unlogged on its publisher";
    let unlogged = of_tables(view, "unlogged_tables", |tables| &tables.unlogged, words);
    found.extend(unlogged.into_iter().map(|mut evidence| {
        // No publication can have them.
        let tables = ["few_tables", "many_tables"].map(|name| evidence.names.remove(name));
        let tables = tables.into_iter().flatten().next().unwrap_or_default();
        evidence.name("unlogged", tables)
    }));
    let words = "tables that the subscription follows and its publisher does not have";
    let absent = of_tables(view, "absent_tables", |tables| &tables.absent, words);
    found.extend(absent.into_iter().map(|mut evidence| {
        // Nobody can publish them.
        let names = ["left_out", "few_tables", "many_tables"];
        let tables = names
            .into_iter()
            .filter_map(|name| evidence.names.remove(name))
            .next_back();
        evidence.name("absent_tables", tables.unwrap_or_default())
    }));
    found
}

pub(super) fn unfollowed(view: &View<'_>) -> Vec<Evidence> {
    let words = "tables that are published and the subscription does not follow";
    of_tables(
        view,
        "unfollowed_tables",
        |tables| &tables.unfollowed,
        words,
    )
}

/// Tables that a subscription follows, and that are unlogged at the subscriber.
pub(super) fn unlogged(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for link in view.links.iter().filter(|link| link.subscription.is_some()) {
        let last = link.replica.and_then(NodeWindow::last);
        let Some((tables, own)) = last.map(|last| &last.tables).and_then(|tables| {
            let own = tables.subscriptions.get(link.subscription.as_deref()?)?;
            Some((tables, own))
        }) else {
            continue;
        };
        let both: Vec<String> = tables.unlogged.intersection(&own.tables).cloned().collect();
        if both.is_empty() {
            continue;
        }
        let set = both.iter().take(MOST_NAMED);
        let set = set.map(|table| format!("ALTER TABLE {table} SET LOGGED;"));
        let words = format!("followed tables that are unlogged there: {}", some(&both));
        found.push(
            Evidence::of(link, 0.0)
                .severity(Severity::Risk)
                .fact("unlogged_tables", both.len() as f64, words)
                .name("tables", some(&both))
                .name("set_logged", set.collect::<Vec<_>>().join(" ")),
        );
    }
    found
}
