//! What can make a subscription's worker, or the copy of a table, fail at some rows, by what both servers say
//! of their tables. Only the subscriber's log says which rows these were.

use std::collections::{BTreeMap, BTreeSet};

use super::consumer::of_triggers;
use super::published::{followed, some};
use super::renamed::parts;
use super::width::{Fit, fit, is_alike_in_binary, labels_added};
use super::{Evidence, View, identifier};
use crate::link::Link;
use crate::tables::{DEFAULT, Followed, Tables};
use crate::window::NodeWindow;

/// A remedy for columns whose types take fewer values than the publisher's.
pub(super) const WIDEN: &str = "on {server}: {widen} if the log says that a value is too long, out of range or none of an \
     enum: an enabled subscription then goes on by itself. A column that is stored in another way is written anew, with its table";

/// A remedy for columns of other types.
pub(super) const RETYPE: &str = "give {retyped} at the subscriber the publisher's types (ALTER TABLE ... ALTER COLUMN ... \
     TYPE ... USING ...), if the log says that it refuses a value: what becomes of those that are there is your choice";

/// A remedy for columns of other types whose values come in binary form.
pub(super) const AS_TEXT: &str = "on {server}: ALTER SUBSCRIPTION {binary} SET (binary = off); if the log says that binary \
     data is incorrect or insufficient: values then come as text";

/// A remedy for partitions that only the publisher has.
pub(super) const PARTITION: &str = "on {server}: {partition} if the log says that no partition was found for a row: an \
     enabled subscription then goes on by itself";

/// A remedy for tables that are partitioned at the subscriber only, or in another way.
pub(super) const CATCH_ALL: &str = "on {server}: {catch_all} if the log says that no partition was found for a row: an \
     enabled subscription then goes on by itself. Another partition for these rows can be made only without them";

/// Most statements that are printed.
const MOST_MADE: usize = 5;

/// Adds the suspects of a worker that fails: triggers that fire in it, foreign keys for which it refuses
/// TRUNCATE, and what its tables do not take.
pub(super) fn of_worker(mut evidence: Evidence, view: &View<'_>, link: &Link<'_>) -> Evidence {
    let Some((followed, published)) = followed(view, link) else {
        return evidence;
    };
    evidence = of_triggers(evidence, &followed.triggers);
    let mut publications = followed.publications.iter();
    let truncates = publications.any(|name| published.truncating.contains(name));
    if let Some(first) = followed.references.first().filter(|_| truncates) {
        let all = followed.references.iter();
        let all = all.map(|it| format!("{} of {} leads to {}", it.name, it.table, it.to));
        let all: Vec<String> = all.collect();
        let words = format!(
            "foreign keys of tables that are not followed, for which it refuses TRUNCATE: {}",
            some(&all)
        );
        evidence = evidence
            .fact("refusing_keys", all.len() as f64, words)
            .name("constraint", &first.name)
            .name("referencing", &first.table);
    }
    of_tables(evidence, view, link, &followed.tables)
}

/// Adds the suspects among these followed tables: columns that do not take all that is sent, and partitioned
/// tables that may have no partition for a row.
pub(super) fn of_tables(
    evidence: Evidence,
    view: &View<'_>,
    link: &Link<'_>,
    among: &BTreeSet<String>,
) -> Evidence {
    let ours = link.replica.and_then(NodeWindow::last);
    let Some(((followed, theirs), ours)) = followed(view, link).zip(ours) else {
        return evidence;
    };
    let ours = &ours.tables;
    let narrow = narrow(followed, theirs, ours, among);
    let mut evidence = of_columns(evidence, &narrow);
    let subscription = link.subscription.as_deref().map(identifier);
    if let Some(name) = subscription.filter(|_| narrow.iter().any(|it| it.is_of_binary)) {
        evidence = evidence.name("binary", name);
    }
    let mut found = open(theirs, ours, among);
    found.extend(
        among
            .iter()
            .filter_map(|table| bounded(table, theirs, ours)),
    );
    of_partitions(evidence, &found)
}

/// A column that does not take all that is sent.
struct Narrow {
    /// `COLUMN of TABLE`
    name: String,
    why: String,
    /// What gives it room; empty if that is not known.
    widen: Vec<String>,
    /// The values of the column would do as text.
    is_of_binary: bool,
}

fn narrow(
    followed: &Followed,
    theirs: &Tables,
    ours: &Tables,
    among: &BTreeSet<String>,
) -> Vec<Narrow> {
    let publications = followed.publications.iter();
    let published = publications.filter_map(|name| theirs.columns.get(name));
    let mut sent: BTreeMap<(&String, &String), &String> = BTreeMap::new();
    for (table, columns) in published.flatten().filter(|it| among.contains(it.0)) {
        let columns = columns.iter();
        sent.extend(columns.map(|(column, kind)| ((table, column), kind)));
    }
    let is_binary = followed.options.iter().any(|it| it == "binary = on");
    let mut found = Vec::new();
    for ((table, column), their) in sent {
        let Some(our) = ours.held.get(table).and_then(|held| held.get(column)) else {
            continue;
        };
        let labels = theirs.enums.get(their).zip(ours.enums.get(our));
        let added = labels.map(|(all, own)| labels_added(our, all, own));
        let added = added.unwrap_or_default();
        let how = fit(their, our);
        let is_of_binary = is_binary && how == Fit::All && !is_alike_in_binary(their, our);
        let (why, widen) = match how {
            Fit::All if !added.is_empty() => {
                (format!("{our} lacks labels of the publisher's"), added)
            }
            Fit::All if !is_of_binary => continue,
            _ => {
                let alter = format!("ALTER TABLE {table} ALTER COLUMN {column} TYPE {their};");
                // Of a partition its root is to be altered.
                let is_part = ours.ancestors.contains_key(table);
                let alter = (how == Fit::Fewer && !is_part).then_some(alter);
                let why = format!("{our} here, {their} on the publisher");
                (why, alter.into_iter().collect())
            }
        };
        found.push(Narrow {
            name: format!("{column} of {table}"),
            why,
            widen,
            is_of_binary,
        });
    }
    found
}

fn names<'n>(of: impl Iterator<Item = &'n Narrow>) -> Vec<String> {
    of.map(|it| it.name.clone()).collect()
}

fn of_columns(mut evidence: Evidence, found: &[Narrow]) -> Evidence {
    if found.is_empty() {
        return evidence;
    }
    let all = found.iter().map(|it| format!("{} ({})", it.name, it.why));
    let all: Vec<String> = all.collect();
    let words = format!("columns that do not take all that is sent: {}", some(&all));
    evidence = evidence
        .fact("narrow_columns", all.len() as f64, words)
        .name("columns", some(&names(found.iter())));
    let mut widen: Vec<&str> = Vec::new();
    for sql in found.iter().flat_map(|it| &it.widen) {
        if !widen.contains(&sql.as_str()) && widen.len() < MOST_MADE {
            widen.push(sql);
        }
    }
    if !widen.is_empty() {
        evidence = evidence.name("widen", widen.join(" "));
    }
    let retyped = names(found.iter().filter(|it| it.widen.is_empty()));
    match retyped.is_empty() {
        true => evidence,
        false => evidence.name("retyped", some(&retyped)),
    }
}

/// A partitioned table that may have no partition for a row.
struct Open<'t> {
    table: &'t str,
    why: String,
    /// What makes the partitions that only the publisher has.
    partitions: Vec<String>,
    /// What makes one for all rows, where the publisher's table has not the same kind of partitions.
    catch_all: Option<String>,
}

fn open<'t>(theirs: &Tables, ours: &'t Tables, among: &BTreeSet<String>) -> Vec<Open<'t>> {
    let is_free = |name: &String| {
        ours.there
            .as_ref()
            .is_none_or(|there| !there.contains(name))
    };
    let is_among = |table: &String| {
        let above = ours.ancestors.get(table);
        among.contains(table) || above.is_some_and(|above| !above.is_disjoint(among))
    };
    let found = ours.parted.iter().filter_map(|(table, own)| {
        if !is_among(table) || own.has(DEFAULT) {
            return None;
        }
        let by = &own.by;
        let Some(alike) = theirs.parted.get(table).filter(|it| it.by == *by) else {
            // Those by a hash are made at once, and take all rows.
            let is_open = !by.starts_with("HASH ");
            return is_open.then(|| Open {
                table,
                why: format!("{table} by {by}, without a default partition"),
                partitions: Vec::new(),
                catch_all: catch_all(table, is_free),
            });
        };
        let lacking = alike.parts.iter().filter(|(_, bound)| !own.has(bound));
        let lacking: Vec<(&String, &String)> = lacking.collect();
        let bounds: Vec<String> = lacking.iter().map(|(_, bound)| (*bound).clone()).collect();
        let made = lacking
            .iter()
            .filter(|(name, _)| is_free(name) && !theirs.parted.contains_key(*name));
        let made =
            made.map(|(name, bound)| format!("CREATE TABLE {name} PARTITION OF {table} {bound};"));
        (!lacking.is_empty()).then(|| Open {
            table,
            why: format!(
                "{table} by {by}, without partitions that the publisher has: {}",
                some(&bounds)
            ),
            partitions: made.collect(),
            catch_all: None,
        })
    });
    found.collect()
}

/// A followed table that is a partition here, and takes other rows than on the publisher.
fn bounded<'t>(table: &'t str, theirs: &Tables, ours: &Tables) -> Option<Open<'t>> {
    let bound = |tables: &Tables| {
        let mut all = tables.parted.values();
        all.find_map(|it| it.parts.get(table).cloned())
    };
    let (own, their) = (bound(ours)?, bound(theirs));
    let there = their.as_deref().unwrap_or("all");
    let is_open = own != DEFAULT && own != there;
    is_open.then(|| Open {
        table,
        why: format!("{table}, which takes {own} here, and {there} on the publisher"),
        partitions: Vec::new(),
        catch_all: None,
    })
}

/// What makes a partition of a table for all rows that no other takes.
fn catch_all(table: &str, is_free: impl Fn(&String) -> bool) -> Option<String> {
    let (schema, name) = parts(table)?;
    let plain = name.trim_matches('"').replace("\"\"", "\"");
    let part = format!("{schema}.{}", identifier(&format!("{plain}_default")));
    is_free(&part).then(|| format!("CREATE TABLE {part} PARTITION OF {table} {DEFAULT};"))
}

fn of_partitions(mut evidence: Evidence, found: &[Open<'_>]) -> Evidence {
    let Some(first) = found.first() else {
        return evidence;
    };
    let all: Vec<String> = found.iter().map(|it| it.why.clone()).collect();
    let words = format!(
        "tables that may have no partition for a row: {}",
        some(&all)
    );
    evidence = evidence
        .fact("open_tables", all.len() as f64, words)
        .name("open_table", first.table);
    let partitions = found.iter().flat_map(|it| it.partitions.clone());
    let catch_all = found.iter().filter_map(|it| it.catch_all.clone());
    let both: [(_, Vec<String>); 2] = [
        ("partition", partitions.take(MOST_MADE).collect()),
        ("catch_all", catch_all.take(MOST_MADE).collect()),
    ];
    for (name, sql) in both {
        if !sql.is_empty() {
            evidence = evidence.name(name, sql.join(" "));
        }
    }
    evidence
}

#[cfg(test)]
mod tests {
    use super::super::Cause;
    use super::super::refused_tests::{failing, followed, tables};
    use super::super::scene::Scene;
    use super::*;
    use crate::diagnosis::Finding;
    use crate::tables::Parted;

    fn map<V>(of: Vec<(&str, V)>) -> BTreeMap<String, V> {
        of.into_iter()
            .map(|(name, it)| (name.to_owned(), it))
            .collect()
    }

    /// What is said of a worker that fails, or does not, at a subscriber whose tables are changed so.
    fn said(
        fails: bool,
        publisher: impl Fn(&mut Tables),
        subscriber: impl Fn(&mut Tables),
    ) -> Vec<Finding> {
        let mut scene = Scene::healthy();
        if fails {
            failing(&mut scene);
        }
        tables(&mut scene.primary, publisher);
        tables(&mut scene.one, subscriber);
        let found = scene.diagnose().findings.into_iter();
        found.filter(|it| it.at == "one").collect()
    }

    fn of_types(theirs: &str, ours: &str, fails: bool) -> Vec<Finding> {
        of_types_if(theirs, ours, fails, false)
    }

    fn of_types_if(theirs: &str, ours: &str, fails: bool, is_binary: bool) -> Vec<Finding> {
        said(
            fails,
            |it| {
                let columns = map(vec![("id", "integer".to_owned()), ("v", theirs.to_owned())]);
                it.columns = map(vec![("p", map(vec![("public.t", columns)]))]);
                it.enums = map(vec![("s.e", "'a', 'b'".to_owned())]);
            },
            |it| {
                let columns = map(vec![("id", "integer".to_owned()), ("v", ours.to_owned())]);
                it.held = map(vec![("public.t", columns)]);
                it.enums = map(vec![("s.e", "'a'".to_owned())]);
                if is_binary {
                    followed(it).options = vec!["binary = on".to_owned()];
                }
            },
        )
    }

    #[test]
    fn a_worker_that_fails_is_told_with_columns_that_are_narrower() {
        for (theirs, ours, words, remedy) in [
            (
                "text",
                "character varying(3)",
                "v of public.t (character varying(3) here, text on the publisher)",
                "on one: ALTER TABLE public.t ALTER COLUMN v TYPE text; if the log",
            ),
            (
                "s.e",
                "s.e",
                "v of public.t (s.e lacks labels of the publisher's)",
                "on one: ALTER TYPE s.e ADD VALUE 'b' AFTER 'a'; if the log",
            ),
            (
                "text",
                "integer",
                "v of public.t (integer here, text on the publisher)",
                "give v of public.t at the subscriber the publisher's types",
            ),
        ] {
            let found = of_types(theirs, ours, true);
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].cause, Cause::ApplyStopped);
            let facts: Vec<&str> = found[0]
                .evidence
                .iter()
                .map(|it| it.words.as_str())
                .collect();
            let expected = format!("columns that do not take all that is sent: {words}");
            assert!(facts.contains(&expected.as_str()), "{facts:?}");
            assert!(
                found[0].remedies[0].starts_with(remedy),
                "{:?}",
                found[0].remedies
            );
            // As long as no value comes that is refused, all is well.
            let well = of_types(theirs, ours, false);
            assert!(well.is_empty(), "{well:?}");
        }
        // Of a number that would fit as text.
        for is_binary in [false, true] {
            let found = of_types_if("integer", "bigint", true, is_binary);
            let as_text = "on one: ALTER SUBSCRIPTION sub_one SET (binary = off); if the log";
            let is_told = found[0].remedies.iter().any(|it| it.starts_with(as_text));
            assert_eq!(is_told, is_binary, "{found:?}");
        }
        let same = of_types("text", "text", true);
        let narrow = same[0]
            .evidence
            .iter()
            .any(|it| it.name == "narrow_columns");
        assert!(!narrow, "{same:?}");
    }

    fn parted(by: &str, parts: &[(&str, &str)]) -> Parted {
        Parted {
            by: by.to_owned(),
            parts: map(parts.iter().map(|it| (it.0, it.1.to_owned())).collect()),
        }
    }

    fn of_parted(theirs: Option<Parted>, ours: Parted) -> Option<(String, Vec<String>)> {
        let found = said(
            true,
            |it| {
                let columns = map(vec![("id", "integer".to_owned())]);
                it.columns = map(vec![("p", map(vec![("public.t", columns)]))]);
                it.parted = theirs
                    .iter()
                    .map(|it| ("public.t".to_owned(), it.clone()))
                    .collect();
            },
            |it| {
                followed(it).tables = ["public.t".to_owned()].into();
                it.parted = map(vec![("public.t", ours.clone())]);
            },
        );
        let fact = found[0].evidence.iter().find(|it| it.name == "open_tables");
        fact.map(|it| (it.words.clone(), found[0].remedies.clone()))
    }

    #[test]
    fn a_worker_that_fails_is_told_with_tables_that_lack_a_partition() {
        const BY: &str = "RANGE (id)";
        let one = ("public.t1", "FOR VALUES FROM (1) TO (4)");
        let two = ("public.t2", "FOR VALUES FROM (4) TO (9)");
        let rest = ("public.t3", "DEFAULT");
        let (words, remedies) =
            of_parted(Some(parted(BY, &[one, two])), parted(BY, &[one])).unwrap();
        assert!(
            words.ends_with(
                "public.t by RANGE (id), without partitions that the publisher has: FOR VALUES FROM (4) TO (9)"
            ),
            "{words}"
        );
        let make =
            "on one: CREATE TABLE public.t2 PARTITION OF public.t FOR VALUES FROM (4) TO (9); if";
        assert!(remedies[0].starts_with(make), "{remedies:?}");

        let (words, remedies) = of_parted(None, parted(BY, &[one])).unwrap();
        assert!(
            words.ends_with("public.t by RANGE (id), without a default partition"),
            "{words}"
        );
        let make = "on one: CREATE TABLE public.t_default PARTITION OF public.t DEFAULT; if";
        assert!(remedies[0].starts_with(make), "{remedies:?}");

        // They take what the publisher's take, or everything.
        for (theirs, ours) in [
            (Some(parted(BY, &[one, two])), parted(BY, &[two, one])),
            (Some(parted(BY, &[one])), parted(BY, &[one, two])),
            (Some(parted(BY, &[one, two])), parted(BY, &[one, rest])),
            (None, parted(BY, &[rest])),
            (
                None,
                parted(
                    "HASH (id)",
                    &[("public.t1", "FOR VALUES WITH (modulus 1, remainder 0)")],
                ),
            ),
        ] {
            assert_eq!(of_parted(theirs, ours), None);
        }
    }

    #[test]
    fn a_partition_that_takes_other_rows_is_told() {
        const BY: &str = "RANGE (id)";
        let own = ("public.t1", "FOR VALUES FROM (1) TO (4)");
        let why = |theirs: &[(&str, &str)]| {
            let found = said(
                true,
                |it| {
                    let all = parted(BY, theirs);
                    it.parted = map(vec![("public.t", all)]);
                },
                |it| {
                    followed(it).tables = ["public.t1".to_owned()].into();
                    it.parted = map(vec![("public.t", parted(BY, &[own]))]);
                },
            );
            let stopped = found.iter().find(|it| it.cause == Cause::ApplyStopped);
            let facts = stopped.into_iter().flat_map(|it| &it.evidence);
            let mut facts = facts.filter(|it| it.name == "open_tables");
            facts.next().map(|it| it.words.clone())
        };
        assert_eq!(why(&[own]), None);
        for (theirs, there) in [
            (
                &[("public.t1", "FOR VALUES FROM (1) TO (9)")][..],
                "FOR VALUES FROM (1) TO (9)",
            ),
            (&[], "all"),
        ] {
            let words = format!(
                "tables that may have no partition for a row: public.t1, which takes FOR VALUES FROM (1) TO (4) \
                 here, and {there} on the publisher"
            );
            assert_eq!(why(theirs), Some(words));
        }
    }
}
