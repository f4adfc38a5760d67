//! Cases and variants of `bench replay`.

use clap::ValueEnum;
use lockstep_lab::server::Settings;

use crate::replay::parallel;
use crate::replay::placement::Placement;
use crate::replay::temperature::Temperature;
use crate::replay::work::Work;
use crate::table::Named;
use crate::trial::Variant;

/// The name of [`ReplayCase::CrashRecovery`].
pub const CRASH_RECOVERY: &str = "crash-recovery";

/// Most busy processes beside a standby, and how many there are if nothing is chosen.
pub const MOST_BUSY: u32 = 64;
const USUAL_BUSY: [u32; 2] = [1, 12];

/// Which server replays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReplayVariant {
    /// PostgreSQL as it is.
    Stock,
    /// PostgreSQL as it is, once more: how far its results differ shows what a ratio is worth.
    StockAgain,
    /// PostgreSQL with the extension.
    Lockstep,
    /// Stock with recovery_prefetch off: shows what stock gains from asking for blocks ahead.
    StockNoPrefetch,
}

impl ReplayVariant {
    /// The variants that run in a case if none are chosen.
    pub fn usual(case: &ReplayCase) -> &'static [Self] {
        match case.memory() {
            Temperature::PartSlow => &[
                Self::Stock,
                Self::StockAgain,
                Self::Lockstep,
                Self::StockNoPrefetch,
            ],
            _ => &[Self::Stock, Self::StockAgain, Self::Lockstep],
        }
    }

    /// The server that it runs.
    fn server(self) -> Variant {
        match self {
            Self::Stock | Self::StockAgain | Self::StockNoPrefetch => Variant::Stock,
            Self::Lockstep => Variant::Lockstep,
        }
    }

    /// Settings of its server, whose data is of this temperature; those in `set` are Lockstep's.
    pub fn settings(self, memory: Temperature, set: &[(String, String)]) -> Settings {
        let mut settings = parallel::settings(self.server(), memory, set);
        if self == Self::StockNoPrefetch {
            settings.insert("recovery_prefetch".to_owned(), "off".to_owned());
        }
        settings
    }

    /// What a row says of them.
    pub fn settings_text(self, memory: Temperature, set: &[(String, String)]) -> Option<String> {
        match self {
            Self::StockNoPrefetch => Some("recovery_prefetch=off".to_owned()),
            _ => parallel::settings_text(self.server(), memory, set),
        }
    }
}

impl Named for ReplayVariant {
    fn name(&self) -> &'static str {
        match self {
            Self::Stock => "stock",
            Self::StockAgain => "stock-again",
            Self::Lockstep => "lockstep",
            Self::StockNoPrefetch => "stock-no-prefetch",
        }
    }
}

/// What is replayed, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayCase {
    /// A recording, by a standby.
    Standby(Work, Temperature, Placement),
    /// A recording whose data is cached and whose WAL is local, beside so many busy processes.
    Beside(Work, u32),
    /// The WAL of a primary that was killed, by itself.
    CrashRecovery,
}

impl ReplayCase {
    pub fn name(&self) -> String {
        match *self {
            Self::Standby(work, temperature, placement) => format!(
                "{}-{}-{}",
                work.name(),
                temperature.name(),
                placement.name()
            ),
            Self::Beside(work, others) => {
                let (temperature, placement) = (Temperature::Cached, Placement::Local);
                let quiet = Self::Standby(work, temperature, placement);
                format!("{}-busy-{others}", quiet.name())
            }
            Self::CrashRecovery => CRASH_RECOVERY.to_owned(),
        }
    }

    /// What a standby replays, what of its data is in memory, where its WAL comes from, and how many busy
    /// processes run beside it. None: it is no standby.
    pub fn standby(&self) -> Option<(Work, Temperature, Placement, u32)> {
        match *self {
            Self::Standby(work, memory, placement) => Some((work, memory, placement, 0)),
            Self::Beside(work, others) => Some((work, self.memory(), Placement::Local, others)),
            Self::CrashRecovery => None,
        }
    }

    /// What of its data is in memory.
    pub fn memory(&self) -> Temperature {
        match *self {
            Self::Standby(_, temperature, _) => temperature,
            Self::Beside(..) | Self::CrashRecovery => Temperature::Cached,
        }
    }

    /// The cases that run if none are chosen, those of one recording after each other.
    pub fn usual() -> Vec<Self> {
        use {Placement as P, Temperature as T, Work as W};
        let mut cases = Vec::new();
        for work in [
            W::Update,
            W::TpcC,
            W::TpcB,
            W::Insert,
            W::UuidInsert,
            W::Bulk,
        ] {
            cases.push(Self::Standby(work, T::Cached, P::OneCore));
            if matches!(work, W::Update | W::TpcC) {
                cases.push(Self::Standby(work, T::Cached, P::Streamed));
            }
            cases.push(Self::Standby(work, T::Cached, P::Local));
            if work == W::TpcC {
                cases.push(Self::Standby(work, T::Part, P::Local));
                cases.push(Self::Standby(work, T::PartSlow, P::Local));
                cases.extend(USUAL_BUSY.map(|others| Self::Beside(work, others)));
            }
        }
        cases.push(Self::CrashRecovery);
        for work in [
            W::Production,
            W::ProductionLz4,
            W::SimpleUpdate,
            W::TpcBCheckpoint,
            W::Sysbench,
        ] {
            cases.push(Self::Standby(work, T::Cached, P::Local));
        }
        cases
    }

    /// False if something that it needs is not installed.
    pub fn is_there(&self) -> bool {
        match self {
            Self::Standby(work, ..) | Self::Beside(work, _) => work.is_there(),
            Self::CrashRecovery => true,
        }
    }

    /// All combinations of these, those of one recording after each other.
    pub fn combinations(works: &[Work], memory: &[Temperature], places: &[Placement]) -> Vec<Self> {
        let mut cases = Vec::new();
        for &work in works {
            for &temperature in memory {
                let with = |&placement: &Placement| Self::Standby(work, temperature, placement);
                cases.extend(places.iter().map(with));
            }
        }
        cases
    }

    /// Every case that there can be.
    pub fn all() -> Vec<Self> {
        let mut cases = Self::combinations(&Work::ALL, &Temperature::ALL, &Placement::ALL);
        for work in Work::ALL {
            cases.extend((1..=MOST_BUSY).map(|others| Self::Beside(work, others)));
        }
        cases.push(Self::CrashRecovery);
        cases
    }
}
