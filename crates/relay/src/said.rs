//! What was said last about something that is tried again and again, so that the log has each
//! reason once, and again only after another.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Mutex;

use crate::lock::lock;

/// What was said last, by what it is about.
#[derive(Debug, Default)]
pub struct Said(Mutex<BTreeMap<String, String>>);

impl Said {
    /// Notes why something fails. True if that differs from what was said last.
    pub fn is_new(&self, about: &str, why: &dyn Display) -> bool {
        let why = why.to_string();
        let last = lock(&self.0).insert(about.to_owned(), why.clone());
        last.as_ref() != Some(&why)
    }

    /// Notes that something does not fail any more. True if it did.
    pub fn clear(&self, about: &str) -> bool {
        lock(&self.0).remove(about).is_some()
    }

    /// Why it fails; None if it does not.
    pub fn last(&self, about: &str) -> Option<String> {
        lock(&self.0).get(about).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_said_once() {
        let said = Said::default();
        assert!(said.is_new("a", &"x") && !said.is_new("a", &"x"));
        assert!(said.is_new("b", &"x") && said.is_new("a", &"y") && said.is_new("a", &"x"));
        assert_eq!(said.last("a").as_deref(), Some("x"));
        assert!(said.clear("a") && !said.clear("a"));
        assert!(said.is_new("a", &"x"));
    }
}
