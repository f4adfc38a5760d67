//! A session of one of both databases, as a fence and the driver use it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use lockstep_client::ClientError;
use lockstep_replica::error::Result;
use lockstep_replica::lifecycle::fence::{Fence, Fenced, Writers};
use lockstep_wire::Lsn;

use super::database::{Database, Function, TABLES, index};
use super::world::{Plant, SharedWorld, Trouble, World};

/// A session of one of both databases.
pub struct Session {
    world: SharedWorld,
    side: usize,
    run: u32,
    /// Commits of the session need not be on disk.
    is_soft: bool,
}

impl Session {
    pub fn connect(world: &SharedWorld, side: usize) -> Result<Self> {
        let mut it = world.borrow_mut();
        it.passes(Duration::from_millis(2));
        let database = &it.sides[side];
        let run = match database.down {
            Some(_) => return Err(it.lost(side)),
            None => database.run,
        };
        let world = world.clone();
        let is_soft = false;
        Ok(Self {
            world,
            side,
            run,
            is_soft,
        })
    }

    pub fn is_lost(&self) -> bool {
        let world = self.world.borrow();
        world.sides[self.side].run != self.run || world.sides[self.side].down.is_some()
    }

    /// Does something on the server, unless something goes wrong before or after it.
    pub fn does<T>(
        &mut self,
        what: &str,
        effect: impl FnOnce(&mut World, usize) -> T,
    ) -> Result<T, ClientError> {
        let world = self.world.clone();
        let mut world = world.borrow_mut();
        let time = Duration::from_micros(world.rng.u64(200..2_500));
        world.passes(time);
        let trouble = world.trouble();
        let lost = || ClientError::Lost("the simulation has cut it".to_owned());
        match trouble {
            Some(Trouble::KilledBefore) => world.kill(),
            Some(Trouble::SourceDies) => {
                let side = world.source;
                world.die(side);
            }
            Some(Trouble::TargetDies) => {
                let side = world.target();
                world.die(side);
            }
            _ => {}
        }
        let database = &world.sides[self.side];
        if database.run != self.run || database.down.is_some() {
            return Err(lost());
        }
        let done = effect(&mut world, self.side);
        world.say(|| format!("side {}: {what}", self.side));
        match trouble {
            Some(Trouble::KilledAfter) => world.kill(),
            Some(Trouble::LostAfter) => {
                world.seen.lost += 1;
                // The session is gone, and whoever asks with it finds that.
                self.run = u32::MAX;
                Err(lost())
            }
            _ => Ok(done),
        }
    }

    pub fn database<T>(
        &mut self,
        what: &str,
        effect: impl FnOnce(&mut Database) -> T,
    ) -> Result<T, ClientError> {
        self.does(what, |world, side| effect(&mut world.sides[side]))
    }
}

fn table_name(table: usize) -> String {
    format!("t{table}")
}

fn table_of(name: &str) -> usize {
    name[1..].parse().unwrap()
}

impl Fenced for Session {
    fn set(&mut self, settings: &str) -> Result<(), ClientError> {
        match settings {
            "SET synchronous_commit = off" => self.is_soft = true,
            "SET synchronous_commit = local" => self.is_soft = false,
            _ => {}
        }
        self.database(settings, |_| ())
    }

    fn comment(&mut self, fence: Fence) -> Result<Option<String>, ClientError> {
        self.does("asks for a fence", |world, side| {
            let function = world.sides[side].function(fence);
            let is_seen = world.plant != Some(Plant::FenceNotSeen) || side != world.source;
            function.filter(|_| is_seen).map(|it| it.comment.clone())
        })
    }

    fn setting(&mut self) -> Result<Option<String>, ClientError> {
        self.database("asks for the setting", |it| it.setting.clone())
    }

    fn make_function(&mut self, fence: Fence) -> Result<(), ClientError> {
        let is_soft = self.is_soft;
        self.database("makes a fence's function", |it| {
            it.function_mut(fence).get_or_insert_default().refuses = false;
            it.made(fence, None, is_soft);
        })
    }

    fn let_pass(&mut self, fence: Fence) -> Result<(), ClientError> {
        self.does("lets a fence pass", |world, side| {
            let it = &mut world.sides[side];
            let is_up = it.function(fence).is_some_and(|it| it.refuses);
            let is_back = fence == Fence::Left && side == world.source && is_up;
            world.seen.taken_back += u64::from(is_back);
            it.function_mut(fence).get_or_insert_default().refuses = false;
            it.commit(false);
        })
    }

    fn refuse(&mut self, fence: Fence, comment: Option<&str>) -> Result<(), ClientError> {
        self.does("lets a fence refuse", |world, side| {
            if (world.plant, fence) == (Some(Plant::TargetNotClosed), Fence::Comes) {
                return;
            }
            let database = &mut world.sides[side];
            let function: &mut Function = database.function_mut(fence).get_or_insert_default();
            function.refuses = true;
            if let Some(comment) = comment {
                comment.clone_into(&mut function.comment);
            }
            database.setting = Some("on".to_owned());
            let open = (world.clients.iter_mut()).filter(|it| it.side == side);
            let open = open.filter_map(|it| it.transaction.as_mut());
            for transaction in open.chain(database.prepared.values_mut()) {
                transaction.blind = transaction.locked.clone();
            }
            database.commit(false);
        })
    }

    fn restore(&mut self, fence: Fence, setting: Option<&str>) -> Result<(), ClientError> {
        self.does("restores the setting", |world, side| {
            let stays = world.plant == Some(Plant::SettingStays);
            let database = &mut world.sides[side];
            if !stays {
                database.setting = setting.map(str::to_owned);
            }
            if let Some(function) = database.function_mut(fence) {
                function.comment.clear();
            }
            database.commit(false);
        })
    }

    fn drop_function(&mut self, fence: Fence) -> Result<(), ClientError> {
        self.database("drops a fence's function", |it| {
            *it.function_mut(fence) = None;
            it.commit(false);
        })
    }

    fn unfenced(&mut self, fence: Fence) -> Result<Vec<String>, ClientError> {
        self.does("asks for tables without a trigger", |world, side| {
            let is_up = world.sides[side]
                .function(fence)
                .is_some_and(|it| it.refuses);
            if is_up && world.plant == Some(Plant::GapsNotSeen) {
                return Vec::new();
            }
            let there = &world.sides[side].triggers[index(fence)];
            let lacking = (0..TABLES).filter(|table| !there.contains(table));
            lacking.map(table_name).collect()
        })
    }

    fn fenced(&mut self, fence: Fence) -> Result<Vec<String>, ClientError> {
        self.database("asks for triggers", |it| {
            let there = it.triggers[index(fence)].iter();
            there.map(|table| table_name(*table)).collect()
        })
    }

    fn make_trigger(
        &mut self,
        fence: Fence,
        table: &str,
        patience: Duration,
    ) -> Result<bool, ClientError> {
        let (table, is_soft) = (table_of(table), self.is_soft);
        self.does("makes a trigger", |world, side| {
            world.passes(patience / 4);
            let open = world.clients.iter().filter(|it| it.side == side);
            let open = open.filter_map(|it| it.transaction.as_ref());
            let mut open = open.chain(world.sides[side].prepared.values());
            if open.any(|it| it.locked.contains(&table)) {
                return false;
            }
            let database = &mut world.sides[side];
            database.triggers[index(fence)].insert(table);
            database.made(fence, Some(table), is_soft);
            true
        })
    }

    fn drop_trigger(&mut self, fence: Fence, table: &str) -> Result<bool, ClientError> {
        let table = table_of(table);
        self.database("drops a trigger", |it| {
            it.triggers[index(fence)].remove(&table);
            it.commit(false);
            true
        })
    }

    fn clock(&mut self) -> Result<String, ClientError> {
        // Clients that connect from now on are later than this.
        self.does("asks for the time", |world, _| {
            world.now += Duration::from_micros(1);
            let began = world.clients.iter().map(|it| it.pid).max();
            began.unwrap_or(0).to_string()
        })
    }

    fn end_sessions(&mut self, begun: &str, _: &[u32], is_idle: bool) -> Result<u64, ClientError> {
        let newest: u32 = begun.parse().unwrap();
        self.does("ends sessions", |world, side| {
            if world.plant == Some(Plant::SessionsStay) {
                return 0;
            }
            let those = world
                .clients
                .iter_mut()
                .filter(|it| it.side == side && it.pid <= newest);
            let those = those.filter(|it| !is_idle || it.transaction.is_none());
            those.map(|it| it.ends = true).count() as u64
        })
    }

    fn writers(&mut self) -> Result<Writers, ClientError> {
        self.does("asks who writes", |world, side| {
            if world.plant == Some(Plant::WritersNotSeen) {
                return Writers::new();
            }
            let has_tables = |locked: &BTreeSet<usize>| locked.iter().any(|it| *it < TABLES);
            let open = world.clients.iter().filter(|it| it.side == side);
            let open = open.filter(|it| {
                it.transaction
                    .as_ref()
                    .is_some_and(|it| has_tables(&it.locked))
            });
            let mut writers: Writers = open.map(|it| (format!("c{}", it.pid), it.pid)).collect();
            if world.plant != Some(Plant::PreparedNotSeen) {
                let prepared = world.sides[side].prepared.keys();
                writers.extend(prepared.map(|gid| (gid.clone(), 0)));
            }
            writers
        })
    }

    fn prepared(&mut self) -> Result<Vec<String>, ClientError> {
        self.does("asks what is prepared", |world, side| match world.plant {
            Some(Plant::PreparedNotSeen) => Vec::new(),
            _ => world.sides[side].prepared.keys().cloned().collect(),
        })
    }

    fn words(&mut self, processes: &[u32]) -> Result<String, ClientError> {
        Ok(format!("{processes:?}"))
    }

    fn mark(&mut self) -> Result<Lsn, ClientError> {
        self.database("marks the end", |it| Lsn::from(it.commit(false)))
    }

    fn now(&self) -> Instant {
        self.world.borrow().now
    }

    fn rest(&mut self, time: Duration) {
        self.world.borrow_mut().passes(time);
    }
}
