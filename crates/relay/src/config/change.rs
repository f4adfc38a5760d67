//! What differs between two configurations, and what of it needs a restart.

use std::fmt;

use super::Config;
use super::key::{KEYS, Key};

/// When a changed value takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applies {
    /// A changed value takes effect with RELOAD or SIGHUP.
    Now,
    /// A changed value takes effect when the relay starts again.
    AtRestart,
}

/// One difference. Nothing in it is secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key, or `group NAME`.
    pub name: String,
    pub from: String,
    /// The value wanted.
    pub to: String,
    pub applies: Applies,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, from, to, .. } = self;
        let shown = |value: &str| match value {
            "" => "none".to_owned(),
            value => value.to_owned(),
        };
        match from == to {
            true => write!(f, "{name}: its password has changed"),
            false => write!(f, "{name}: {} -> {}", shown(from), shown(to)),
        }?;
        match self.applies {
            Applies::Now => Ok(()),
            Applies::AtRestart => f.write_str(" (takes effect at the next start)"),
        }
    }
}

impl Config {
    /// What `new` says differently, in the order in which it is shown.
    ///
    /// Groups may be added while the relay runs. To remove or change one takes a restart, as
    /// slots may read from it.
    pub fn differences(&self, new: &Self) -> Vec<Change> {
        let keys = KEYS.iter().filter_map(|key| self.difference(new, key));
        keys.chain(self.group_differences(new)).collect()
    }

    /// This configuration with what of `new` takes effect at once: it is in force after a
    /// reload. What needs a restart stays as it is, and differs again at the next reload.
    pub fn with_reloaded(self, new: Self) -> Self {
        let mut config = new.clone();
        for key in KEYS.iter().filter(|key| key.applies == Applies::AtRestart) {
            (key.copy)(&mut config, &self);
            match self.places.get(key.name) {
                Some(place) => config.places.insert(key.name, place.clone()),
                None => config.places.remove(key.name),
            };
        }
        config.groups = self.groups;
        for group in new.groups {
            if !config.groups.iter().any(|old| old.name == group.name) {
                config.groups.push(group);
            }
        }
        config
    }

    fn difference(&self, new: &Self, key: &Key) -> Option<Change> {
        let (from, to) = ((key.show)(self), (key.show)(new));
        // What is shown of the connection string hides its secrets.
        let secret = key.name == "primary" && self.primary != new.primary;
        (from != to || secret).then(|| Change {
            name: key.name.to_owned(),
            from,
            to,
            applies: key.applies,
        })
    }

    fn group_differences(&self, new: &Self) -> Vec<Change> {
        let change = |name: &str, from: String, to: String, applies| Change {
            name: format!("group {name}"),
            from,
            to,
            applies,
        };
        let mut changes = Vec::new();
        for old in &self.groups {
            let found = new.groups.iter().find(|group| group.name == old.name);
            if found == Some(old) {
                continue;
            }
            let to = found.map(ToString::to_string).unwrap_or_default();
            changes.push(change(&old.name, old.to_string(), to, Applies::AtRestart));
        }
        for group in &new.groups {
            if !self.groups.iter().any(|old| old.name == group.name) {
                let to = group.to_string();
                changes.push(change(&group.name, String::new(), to, Applies::Now));
            }
        }
        changes
    }
}
