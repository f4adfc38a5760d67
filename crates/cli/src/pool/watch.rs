//! `lockstep pool haproxy --watch`: HAProxy follows the nodes file.

use std::collections::BTreeSet;
use std::thread;

use anyhow::{Context, Result};
use lockstep_pool::haproxy::{ServerLine, ServerRules, lines, name_of};
use lockstep_pool::member::Member;
use lockstep_pool::runtime::{Runtime, plan};
use lockstep_service::logging::{self, LogFormat, LogLevel};
use tracing::{info, warn};

use super::members::MembersArgs;
use super::runtime::{LOOK_EVERY, takes_writes};

/// What was read, and what is to be done yet.
struct Watch<'a> {
    file: &'a MembersArgs,
    rules: ServerRules,
    runtime: Runtime,
    members: Vec<Member>,
    /// Nodes whose place has changed: HAProxy forgets them, and gets them anew.
    changed: BTreeSet<String>,
    /// The newest trouble, which is logged once.
    trouble: Option<String>,
}

/// Follows the file until the process is ended. What is wrong with the file, or HAProxy, is logged, and the
/// nodes stay as they were.
pub fn follow(file: &MembersArgs, rules: ServerRules, runtime: Runtime) -> Result<()> {
    logging::start(LogFormat::Text, LogLevel::Info).context("cannot start the log")?;
    let mut watch = Watch {
        file,
        rules,
        runtime,
        members: file.members()?,
        changed: BTreeSet::new(),
        trouble: None,
    };
    info!("following the nodes file");
    loop {
        let looked = watch.look();
        match looked {
            Ok(()) => watch.trouble = None,
            Err(words) if watch.trouble.as_ref() != Some(&words) => {
                warn!("{words}");
                watch.trouble = Some(words);
            }
            Err(_) => {}
        }
        thread::sleep(LOOK_EVERY);
    }
}

impl Watch<'_> {
    fn look(&mut self) -> Result<(), String> {
        let read = self.file.members().map_err(|error| error.to_string());
        if let Ok(members) = &read {
            let is_moved = |new: &&Member| {
                let old = self.members.iter().find(|old| old.name == new.name);
                // One that changes its door is in other back ends, and keeps its sessions meanwhile.
                let at_its_door = |old: &Member| Member {
                    door: new.door,
                    ..old.clone()
                };
                old.is_some_and(|old| at_its_door(old) != **new)
            };
            let moved = members.iter().filter(is_moved);
            self.changed
                .extend(moved.map(|member| name_of(&member.name)));
            self.members.clone_from(members);
        }
        let mut wanted = lines(&self.members, &self.rules)?;
        wanted.retain(|line| !self.changed.contains(&line.name));
        let kept = self.carry_out(&wanted)?;
        read?;
        kept.map_or(Ok(()), Err)
    }

    /// Adds and removes servers. Words if one is kept that is no longer wanted.
    fn carry_out(&mut self, wanted: &[ServerLine]) -> Result<Option<String>, String> {
        let words = |error: lockstep_pool::runtime::RuntimeError| error.to_string();
        let statistics = self.runtime.statistics().map_err(words)?;
        let planned = plan(wanted, &statistics).map_err(words)?;
        for line in planned.missing {
            self.runtime.add(line).map_err(words)?;
            info!("{} is added to {}", line.name, line.backend);
        }
        let mut kept = None;
        for server in planned.surplus {
            if takes_writes(&statistics, &server.name) {
                kept = Some(format!(
                    "{} takes the writes, so it stays: promote another server first",
                    server.name
                ));
            } else if self.runtime.retire(server).map_err(words)? {
                info!("{} is removed from {}", server.name, server.backend);
            }
        }
        let is_there = |name: &String| statistics.servers.iter().any(|it| it.name == *name);
        self.changed.retain(is_there);
        Ok(kept)
    }
}
