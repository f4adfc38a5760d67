//! The file: TOML to keys and groups, with the line of everything that is wrong.

use std::ops::Range;
use std::path::Path;

use lockstep_service::words::quoted;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::group::{
    GroupConfig, MOST_APPLIED_BY, MOST_GROUPS, MOST_PUBLICATIONS, Origin, Plugin, application_name,
    group_name, object_name, setting_name, setting_value,
};
use super::key::{KEYS, Key, ValueKind};
use super::{Config, ConfigError, Place};

const GROUP_KEYS: [&str; 10] = [
    "name",
    "database",
    "publications",
    "binary",
    "origin",
    "messages",
    "plugin",
    "settings",
    "application_name",
    "applied_by",
];

/// A file that is being read.
struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
}

/// Reads a file's text into `config`.
pub(super) fn read(config: &mut Config, path: &Path, text: &str) -> Result<(), ConfigError> {
    let reader = Reader { path, text };
    let table = DeTable::parse(text).map_err(|error| {
        // Its message only: with the line's text a password could be shown.
        reader.wrong(error.span().unwrap_or_default(), error.message())
    })?;
    let base = path.parent().unwrap_or(Path::new(""));
    for (name, span, value) in entries(table.get_ref()) {
        if name == "group" {
            reader.groups(config, value)?;
            continue;
        }
        let key = Key::find(name).ok_or_else(|| {
            let mut known: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
            known.push("[[group]]");
            reader.unknown(span.clone(), name, &known)
        })?;
        let wrong = |reason: String| reader.wrong(span.clone(), &format!("{name}: {reason}"));
        let text = text_of(key.kind, value.get_ref()).map_err(wrong)?;
        (key.set)(config, &text, base).map_err(wrong)?;
        config.places.insert(key.name, reader.place(span));
    }
    Ok(())
}

/// A table's entries in the file's order.
fn entries<'a, 'i>(
    table: &'a DeTable<'i>,
) -> Vec<(&'a str, Range<usize>, &'a Spanned<DeValue<'i>>)> {
    let mut entries: Vec<_> = table
        .iter()
        .map(|(name, value)| (name.get_ref().as_ref(), name.span(), value))
        .collect();
    entries.sort_by_key(|(_, span, _)| span.start);
    entries
}

/// A value as a flag would give it.
fn text_of(kind: ValueKind, value: &DeValue<'_>) -> Result<String, String> {
    match (kind, value) {
        (ValueKind::Text | ValueKind::Size, DeValue::String(text)) => Ok(text.to_string()),
        (ValueKind::Number | ValueKind::Size, DeValue::Integer(number)) => Ok(number.to_string()),
        (ValueKind::Boolean, DeValue::Boolean(value)) => Ok(value.to_string()),
        (ValueKind::Text, _) => Err("write the value as text in quotes".to_owned()),
        (ValueKind::Size, _) => {
            Err("write the value as text with a unit, such as \"16MB\"".to_owned())
        }
        (ValueKind::Number, _) => Err("write the value as a whole number".to_owned()),
        (ValueKind::Boolean, _) => Err("write true or false, without quotes".to_owned()),
    }
}

impl Reader<'_> {
    fn place(&self, span: Range<usize>) -> Place {
        let before = self.text.as_bytes().get(..span.start).unwrap_or_default();
        Place::File {
            path: self.path.to_owned(),
            line: before.iter().filter(|&&byte| byte == b'\n').count() + 1,
        }
    }

    fn wrong(&self, span: Range<usize>, reason: &str) -> ConfigError {
        ConfigError::value(&self.place(span), reason)
    }

    fn unknown(&self, span: Range<usize>, name: &str, known: &[&str]) -> ConfigError {
        let known = known.join(", ");
        self.wrong(
            span,
            &format!("there is no key {}; there are {known}", quoted(name)),
        )
    }

    fn groups(&self, config: &mut Config, value: &Spanned<DeValue<'_>>) -> Result<(), ConfigError> {
        let groups = match value.get_ref() {
            DeValue::Array(groups) => groups,
            _ => return Err(self.wrong(value.span(), "group: begin each with [[group]]")),
        };
        if groups.len() > MOST_GROUPS {
            let reason = format!("there are more than {MOST_GROUPS} groups");
            return Err(self.wrong(value.span(), &reason));
        }
        for value in groups {
            let DeValue::Table(table) = value.get_ref() else {
                return Err(self.wrong(value.span(), "group: begin each with [[group]]"));
            };
            let group = self.group(value.span(), table)?;
            let wrong = |reason: String| Err(self.wrong(value.span(), &reason));
            for other in &config.groups {
                if other.name == group.name {
                    return wrong(format!("there are two groups {}", group.name));
                }
                if other.decodes_like(&group) {
                    return wrong(format!(
                        "groups {} and {} decode the same: leave one out, subscribers share it",
                        other.name, group.name
                    ));
                }
            }
            config.groups.push(group);
        }
        Ok(())
    }

    fn group(&self, span: Range<usize>, table: &DeTable<'_>) -> Result<GroupConfig, ConfigError> {
        let mut group = GroupConfig::new("", "", &[]);
        for (name, span, value) in entries(table) {
            if !GROUP_KEYS.contains(&name) {
                return Err(self.unknown(span, name, &GROUP_KEYS));
            }
            set(&mut group, name, value.get_ref())
                .map_err(|reason| self.wrong(span, &format!("{name}: {reason}")))?;
        }
        let missing = [
            ("name", group.name.is_empty()),
            ("database", group.database.is_empty()),
            ("publications", group.publications.is_empty()),
        ];
        match missing.iter().find(|(_, missing)| *missing) {
            Some((name, _)) => Err(self.wrong(span, &format!("the group has no {name}"))),
            None => Ok(group),
        }
    }
}

/// Sets one key of a group.
fn set(group: &mut GroupConfig, name: &str, value: &DeValue<'_>) -> Result<(), String> {
    let text = || text_of(ValueKind::Text, value);
    let flag = || text_of(ValueKind::Boolean, value).map(|text| text == "true");
    match name {
        "name" => group.name = group_name(&text()?)?,
        "database" => group.database = object_name(&text()?)?,
        "publications" => group.publications = names(value.as_array(), MOST_PUBLICATIONS)?,
        "binary" => group.binary = flag()?,
        "origin" => group.origin = Origin::parse(&text()?)?,
        "messages" => group.messages = flag()?,
        "settings" => group.settings = settings(value.as_table())?,
        "application_name" => group.application_name = Some(application_name(&text()?)?),
        "applied_by" => group.applied_by = names(value.as_array(), MOST_APPLIED_BY)?,
        _ => group.plugin = Plugin::parse(&text()?)?,
    }
    Ok(())
}

/// Settings by their names, each once, in order.
fn settings(table: Option<&DeTable<'_>>) -> Result<Vec<(String, String)>, String> {
    let table = table.ok_or("write the settings in a table, such as { TimeZone = \"UTC\" }")?;
    let mut settings: Vec<(String, String)> = Vec::new();
    for (name, _, value) in entries(table) {
        let name = setting_name(name)?;
        if settings.iter().any(|(given, _)| given == name) {
            return Err(format!("{name} is there twice"));
        }
        let value = text_of(ValueKind::Text, value.get_ref()).and_then(setting_value);
        let value = value.map_err(|reason| format!("{name}: {reason}"))?;
        settings.push((name.to_owned(), value));
    }
    settings.sort();
    Ok(settings)
}

/// Names of things in PostgreSQL, each once, in order.
fn names(list: Option<&DeArray<'_>>, most: usize) -> Result<Vec<String>, String> {
    let list = list.ok_or("write the names in a list, such as [\"a\", \"b\"]")?;
    if !(1..=most).contains(&list.len()) {
        return Err(format!("give 1 to {most} names"));
    }
    let mut names = Vec::with_capacity(list.len());
    for value in list {
        let name = object_name(&text_of(ValueKind::Text, value.get_ref())?)?;
        if names.contains(&name) {
            return Err(format!("{} is there twice", quoted(&name)));
        }
        names.push(name);
    }
    names.sort();
    Ok(names)
}
