//! Sets the target's sequences to the source's values. One that cannot be read or set does not keep the
//! others from it: it is named, with the command that mends it.

use std::collections::{BTreeSet, HashMap};

use lockstep_client::quote::{identifier, sql_literal};
use lockstep_client::{ClientError, Connection, ToText, field};

use crate::error::{ReplicaError, Result};
use crate::names::{Excluded, TableName, tables_of};
use crate::state::{SEQUENCE, Unmade};

/// Most sequences that are asked for at once.
const MOST_SEQUENCES: usize = 500;

/// The source's sequences, each with the table that owns it, and whether an extension has it.
const HERE: &str = "
SELECT n.nspname, c.relname, has_schema_privilege(n.oid, 'USAGE'), has_sequence_privilege(c.oid, 'SELECT'),
    current_user, format('AS %s MINVALUE %s MAXVALUE %s START WITH %s', format_type(s.seqtypid, NULL),
        s.seqmin, s.seqmax, s.seqstart),
    format('INCREMENT BY %s CACHE %s%s', s.seqincrement, s.seqcache,
        CASE WHEN s.seqcycle THEN ' CYCLE' ELSE '' END),
    (SELECT coalesce(json_agg(json_build_array(tn.nspname, t.relname)), '[]')
        FROM pg_depend d JOIN pg_class t ON t.oid = d.refobjid
            JOIN pg_namespace tn ON tn.oid = t.relnamespace
        WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.refclassid = d.classid
            AND d.deptype IN ('a', 'i'))::text,
    EXISTS (SELECT FROM pg_depend e
        WHERE e.classid = 'pg_class'::regclass AND e.objid = c.oid AND e.deptype = 'e')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_sequence s ON s.seqrelid = c.oid
WHERE c.relpersistence <> 't' AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'lockstep'
ORDER BY 1, 2";

/// What the target has under the names of `$1`; a row without a name for a schema that has nothing of one.
const THERE: &str = "
SELECT n.nspname, c.relname, c.relkind = 'S', has_schema_privilege(n.oid, 'USAGE'),
    CASE c.relkind WHEN 'S' THEN has_sequence_privilege(c.oid, 'UPDATE') END, s.seqmin, s.seqmax
FROM json_array_elements($1::json) l JOIN pg_namespace n ON n.nspname = l ->> 0
    LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = l ->> 1
    LEFT JOIN pg_sequence s ON s.seqrelid = c.oid";

/// Sequences that fill columns which the publication's lists leave out. Partitions may use one of a
/// table above them.
const FILLING: &str = "
SELECT DISTINCT n.nspname, s.relname
FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
    CROSS JOIN LATERAL (SELECT r.prrelid AS oid UNION
        SELECT relid FROM pg_partition_ancestors(r.prrelid)) t
    JOIN pg_attribute a ON a.attrelid = t.oid AND a.attname NOT IN (SELECT l.attname
        FROM pg_attribute l WHERE l.attrelid = r.prrelid AND l.attnum = ANY (r.prattrs))
    LEFT JOIN pg_attrdef e ON e.adrelid = a.attrelid AND e.adnum = a.attnum
    JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.refclassid = d.classid
            AND d.refobjid = a.attrelid AND d.refobjsubid = a.attnum AND d.deptype = 'i'
        OR d.classid = 'pg_attrdef'::regclass AND d.objid = e.oid
            AND d.refclassid = 'pg_class'::regclass
    JOIN pg_class s ON s.relkind = 'S'
        AND s.oid = CASE d.deptype WHEN 'i' THEN d.objid ELSE d.refobjid END
    JOIN pg_namespace n ON n.oid = s.relnamespace
WHERE p.pubname = $1 AND r.prattrs IS NOT NULL";

/// Values of sequences by their names in SQL, as they were set last.
pub type Values = HashMap<String, (i64, bool)>;

/// What a role may do with a sequence.
#[derive(Debug, Clone)]
struct Rights {
    role: String,
    /// Whether the role may use the schema.
    schema: bool,
    /// Whether the role may read the source's sequence, or set the target's.
    sequence: bool,
}

/// A sequence of the source.
#[derive(Debug, Clone)]
struct Here {
    name: TableName,
    rights: Rights,
    /// Type, bounds and start, and the rest, as options of a command.
    bounds: String,
    options: String,
    /// The tables that own it: one at most.
    owners: Vec<TableName>,
    /// Whether it came with an extension, which the target may have in another version or not at all.
    of_extension: bool,
}

/// What the target has under a sequence's name.
#[derive(Debug, Clone)]
enum There {
    Sequence { rights: Rights, min: i64, max: i64 },
    Another,
}

#[derive(Debug, Default)]
struct Target {
    role: String,
    schemas: BTreeSet<String>,
    named: HashMap<TableName, There>,
}

/// Brings the target's sequences to where the source's are now: at or beyond every value that rows have
/// which were copied or applied before. Those that fill columns which are not replicated stay: the target
/// has used them for values of its own. Only those are set that have moved since they were `set`. With a
/// name, none is set once that replica no longer follows its source: what was read before must not take back
/// what the target's users have taken of them since. Returns those that cannot be read or set.
pub fn set(
    source: &mut Connection,
    target: &mut Connection,
    (excluded, publication): (&Excluded, &str),
    follows: Option<&str>,
    set: &mut Values,
) -> Result<Vec<Unmade>> {
    let here = here(source).map_err(ReplicaError::Source)?;
    let filling = filling(source, publication).map_err(ReplicaError::Source)?;
    let is_wanted = |one: &&Here| {
        let is_excluded = |name| excluded.names(name);
        let owner = one.owners.iter().any(is_excluded);
        !owner && !is_excluded(&one.name) && !filling.contains(&one.name)
    };
    let wanted: Vec<_> = here.iter().filter(is_wanted).collect();
    let there = there(target, &wanted).map_err(ReplicaError::Target)?;
    let (mut can, mut unset) = (Vec::new(), Vec::new());
    for one in wanted {
        match hindrance(one, &there).map_err(ReplicaError::Target)? {
            Hindrance::None(min, max) => can.push((one, min, max)),
            Hindrance::Named(_) if one.of_extension => {}
            Hindrance::Named(unmade) => unset.push(unmade),
            Hindrance::OfTable => {}
        }
    }
    for part in can.chunks(MOST_SEQUENCES) {
        let names: Vec<_> = part.iter().map(|(one, ..)| &one.name).collect();
        let mut moved = values(source, &names).map_err(ReplicaError::Source)?;
        moved.retain(|name, value| set.get(name) != Some(&*value));
        let mut calls = Vec::new();
        for (one, min, max) in part {
            let name = one.name.sql();
            let Some((last, called)) = moved.get(&name).copied() else {
                continue;
            };
            if !(*min..=*max).contains(&last) {
                moved.remove(&name);
                unset.push(out_of_bounds(one, (*min, *max), last));
                continue;
            }
            let literal = sql_literal("sequence", &name).map_err(ReplicaError::Target)?;
            calls.push(format!("setval({literal}, {last}, {called})"));
        }
        if !calls.is_empty() {
            let sql = while_following(follows, &calls.join(", ")).map_err(ReplicaError::Target)?;
            target.execute(&sql).map_err(ReplicaError::Target)?;
            set.extend(moved);
        }
    }
    unset.sort_by(|one, other| (&one.schema, &one.object).cmp(&(&other.schema, &other.object)));
    Ok(unset)
}

/// The statement that makes these calls. A promotion that begins meanwhile waits for it, since it changes the
/// row that is locked; one that has begun lets it do nothing.
fn while_following(follows: Option<&str>, calls: &str) -> Result<String, ClientError> {
    Ok(match follows {
        None => format!("SELECT {calls}"),
        Some(name) => format!(
            "WITH follows AS MATERIALIZED (SELECT FROM lockstep.replica WHERE name = {} AND phase = 'ready' \
                 FOR SHARE) \
             SELECT {calls} FROM follows",
            sql_literal("replica", name)?
        ),
    })
}

/// What keeps a sequence from being read or set, apart from its value.
enum Hindrance {
    /// Nothing: the target's takes values from the first to the second.
    None(i64, i64),
    Named(Unmade),
    /// The target lacks the table that owns it, too, which is told of by itself.
    OfTable,
}

fn hindrance(here: &Here, target: &Target) -> Result<Hindrance, ClientError> {
    if !here.rights.schema || !here.rights.sequence {
        return rights("source", "SELECT", here, &here.rights).map(Hindrance::Named);
    }
    let name = here.name.sql();
    let mut commands = Vec::new();
    let error = match target.named.get(&here.name) {
        Some(There::Sequence { rights, min, max }) if rights.schema && rights.sequence => {
            return Ok(Hindrance::None(*min, *max));
        }
        Some(There::Sequence { rights: of, .. }) => {
            return rights("target", "UPDATE", here, of).map(Hindrance::Named);
        }
        Some(There::Another) => {
            let aside = identifier("sequence", &format!("{:.50}_aside", here.name.table))?;
            commands.push(format!("ALTER TABLE {name} RENAME TO {aside}"));
            "the target has something else under its name"
        }
        None if here.owners.iter().any(|it| !target.named.contains_key(it)) => {
            return Ok(Hindrance::OfTable);
        }
        None => "the target has no such sequence",
    };
    let role = identifier("role", &target.role)?;
    if !target.schemas.contains(&here.name.schema) {
        let schema = identifier("schema", &here.name.schema)?;
        commands.push(format!("CREATE SCHEMA {schema}"));
        commands.push(format!("GRANT USAGE ON SCHEMA {schema} TO {role}"));
    }
    let (bounds, options) = (&here.bounds, &here.options);
    commands.push(format!("CREATE SEQUENCE {name} {bounds} {options}"));
    commands.push(format!("GRANT UPDATE ON SEQUENCE {name} TO {role}"));
    Ok(Hindrance::Named(unset(
        here,
        "target",
        error.to_owned(),
        &commands,
    )))
}

fn rights(side: &str, right: &str, here: &Here, of: &Rights) -> Result<Unmade, ClientError> {
    let role = identifier("role", &of.role)?;
    let mut commands = Vec::new();
    if !of.schema {
        let schema = identifier("schema", &here.name.schema)?;
        commands.push(format!("GRANT USAGE ON SCHEMA {schema} TO {role}"));
    }
    if !of.sequence {
        let name = here.name.sql();
        commands.push(format!("GRANT {right} ON SEQUENCE {name} TO {role}"));
    }
    let does = if right == "SELECT" { "read" } else { "set" };
    let error = format!("role {} may not {does} it on the {side}", of.role);
    Ok(unset(here, side, error, &commands))
}

fn out_of_bounds(here: &Here, (min, max): (i64, i64), last: i64) -> Unmade {
    let error =
        format!("the target's takes values from {min} to {max}, and the source's is at {last}");
    let (name, bounds) = (here.name.sql(), &here.bounds);
    let command = format!("ALTER SEQUENCE {name} {bounds} RESTART WITH {last}");
    unset(here, "target", error, &[command])
}

fn unset(here: &Here, side: &str, error: String, commands: &[String]) -> Unmade {
    Unmade {
        kind: SEQUENCE.to_owned(),
        schema: here.name.schema.clone(),
        object: here.name.table.clone(),
        command: format!("{};", commands.join("; ")),
        error: format!("{error}; on the {side}"),
    }
}

fn here(source: &mut Connection) -> Result<Vec<Here>, ClientError> {
    let read = |row: &Vec<Option<String>>| {
        // One that is dropped meanwhile has no rights to tell of.
        let (schema, sequence): (Option<bool>, Option<bool>) = (field(row, 2)?, field(row, 3)?);
        let Some((schema, sequence)) = schema.zip(sequence) else {
            return Ok(None);
        };
        Ok(Some(Here {
            name: named(row)?,
            rights: Rights {
                role: field(row, 4)?,
                schema,
                sequence,
            },
            bounds: field(row, 5)?,
            options: field(row, 6)?,
            owners: tables_of(row, 7)?,
            of_extension: field(row, 8)?,
        }))
    };
    let rows = source.query(HERE)?;
    rows.iter()
        .filter_map(|row| read(row).transpose())
        .collect()
}

fn there(target: &mut Connection, wanted: &[&Here]) -> Result<Target, ClientError> {
    let names = wanted
        .iter()
        .flat_map(|one| one.owners.iter().chain([&one.name]));
    let names: BTreeSet<_> = names.map(|name| (&name.schema, &name.table)).collect();
    let names = serde_json::json!(names).to_string();
    let role = target.query_one("SELECT current_user")?;
    let mut found = Target {
        role: field(&role, 0)?,
        ..Target::default()
    };
    for row in target.query_with(THERE, &[&names])? {
        found.schemas.insert(field(&row, 0)?);
        if row.get(1).is_none_or(Option::is_none) {
            continue;
        }
        let there = match field(&row, 2)? {
            true => There::Sequence {
                rights: Rights {
                    role: found.role.clone(),
                    schema: field(&row, 3)?,
                    sequence: field::<Option<bool>>(&row, 4)?.unwrap_or(false),
                },
                min: field(&row, 5)?,
                max: field(&row, 6)?,
            },
            false => There::Another,
        };
        found.named.insert(named(&row)?, there);
    }
    Ok(found)
}

fn filling(source: &mut Connection, publication: &str) -> Result<Vec<TableName>, ClientError> {
    let parameters: [&dyn ToText; 1] = [&publication];
    let rows = source.query_with(FILLING, &parameters)?;
    rows.iter().map(|row| named(row)).collect()
}

fn named(row: &[Option<String>]) -> Result<TableName, ClientError> {
    Ok(TableName {
        schema: field(row, 0)?,
        table: field(row, 1)?,
    })
}

fn values(source: &mut Connection, names: &[&TableName]) -> Result<Values, ClientError> {
    let selects: Result<Vec<_>, ClientError> = names
        .iter()
        .map(|name| {
            let name = name.sql();
            let literal = sql_literal("sequence", &name)?;
            Ok(format!(
                "SELECT {literal}, last_value, is_called FROM {name}"
            ))
        })
        .collect();
    let rows = source.query(&selects?.join(" UNION ALL "))?;
    let value = |row: &Vec<Option<String>>| Ok((field(row, 0)?, (field(row, 1)?, field(row, 2)?)));
    rows.iter().map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rights(schema: bool, sequence: bool) -> Rights {
        Rights {
            role: "Bob".to_owned(),
            schema,
            sequence,
        }
    }

    /// What is printed for a sequence that the target has like this.
    fn printed(there: There) -> Option<String> {
        let name = TableName {
            schema: "a".to_owned(),
            table: "s".to_owned(),
        };
        let here = Here {
            name: name.clone(),
            rights: rights(true, true),
            bounds: String::new(),
            options: String::new(),
            owners: Vec::new(),
            of_extension: false,
        };
        let target = Target {
            role: "Bob".to_owned(),
            schemas: BTreeSet::from(["a".to_owned()]),
            named: HashMap::from([(name, there)]),
        };
        match hindrance(&here, &target).unwrap() {
            Hindrance::Named(unmade) => Some(unmade.line()),
            Hindrance::None(..) | Hindrance::OfTable => None,
        }
    }

    #[test]
    fn a_role_that_may_not_set_a_sequence_is_named_with_what_it_lacks() {
        let there = |rights| There::Sequence {
            rights,
            min: 1,
            max: 7,
        };
        assert_eq!(printed(there(rights(true, true))), None);
        let lead = "sequence a.s is not set to the source's value: role Bob may not set it on the target; \
            on the \
                    target: ";
        let update = "GRANT UPDATE ON SEQUENCE \"a\".\"s\" TO \"Bob\";";
        let of_sequence = printed(there(rights(true, false)));
        assert_eq!(of_sequence, Some(format!("{lead}{update}")));
        let of_both = printed(there(rights(false, false)));
        let usage = "GRANT USAGE ON SCHEMA \"a\" TO \"Bob\"";
        assert_eq!(of_both, Some(format!("{lead}{usage}; {update}")));
    }
}
