//! What changes seldom, and is asked for as seldom: roles, timelines, subscriptions, collations.

use std::collections::BTreeMap;

use lockstep_wire::Timeline;

use super::NodeSampler;
use crate::Result;
use crate::node::Role;
use crate::questions;
use crate::source::{self, Publisher};
use crate::views::Background;

impl NodeSampler {
    /// Asks for what changes seldom and is no part of a sample.
    pub(super) fn ask_background(&mut self) -> Result<Background> {
        let mut background = Background::default();
        if self.node.role == Role::Primary {
            let roles: Option<BTreeMap<String, Option<String>>> =
                self.ask_freely("roles", &questions::roles())?;
            background.roles = roles.filter(|roles| roles.len() < questions::MOST_ROLES);
        }
        if self.node.role == Role::Standby {
            let number: Option<u32> = self.ask_freely("its timeline", questions::TIMELINE)?;
            background.timeline = number.and_then(Timeline::new);
        }
        if self.node.role == Role::Subscriber {
            background.publishers = self.ask_publishers()?;
            background.enabled_subscriptions =
                self.ask_freely("subscriptions", questions::ENABLED_SUBSCRIPTIONS)?;
        }
        let collations = self.ask_freely("versions of collations", questions::COLLATIONS)?;
        background.collations = collations.unwrap_or_default();
        Ok(background)
    }

    /// Asks where subscriptions connect to, if the role may know it.
    fn ask_publishers(&mut self) -> Result<BTreeMap<String, Publisher>> {
        const WHAT: &str = "where subscriptions connect to";
        let may: Option<bool> = self.ask_freely(WHAT, source::MAY_READ)?;
        if may != Some(true) {
            return Ok(BTreeMap::new());
        }
        let strings: Option<BTreeMap<String, String>> =
            self.ask_freely(WHAT, source::PUBLISHERS)?;
        let strings = strings.unwrap_or_default().into_iter();
        Ok(strings
            .filter_map(|(name, conninfo)| Some((name, Publisher::read(&conninfo)?)))
            .collect())
    }
}
