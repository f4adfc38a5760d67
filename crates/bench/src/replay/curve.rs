//! Cases of `bench load-curve`, and what their rates are parts of.

use clap::ValueEnum;

use crate::replay::temperature::Temperature;
use crate::replay::work::Work;

/// Commits a second in [`CurveCase::Light`].
pub const LIGHT_COMMITS: f64 = 100.0;

/// What is replayed, on which cores, and who reads meanwhile. Cases of one recording stand beside
/// each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CurveCase {
    /// TPC-B without readers; the standby has one core and the player the other.
    Idle,
    /// TPC-B with as many readers as --readers says; the standby has one core and the player the other.
    Readers,
    /// TPC-B without readers; the standby has both cores, and shares them with the player.
    IdleTwoCores,
    /// TPC-B with as many readers as --readers says; the standby has both cores.
    ReadersTwoCores,
    /// TPC-B without readers, 100 transactions a second, one by one; both cores.
    Light,
    /// TPC-C without readers, all data cached; both cores.
    TpccTwoCores,
    /// TPC-C without readers, 30 per cent of the data cached; both cores.
    #[value(name = "tpcc-30pct-two-cores")]
    TpccPartTwoCores,
}

/// What the rates of a case are parts of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// What a stock standby with one core and without readers replays at most.
    Replayed,
    /// The highest rate at which lag of a stock standby stays bounded in this case.
    Knee(CurveCase),
    /// [`LIGHT_COMMITS`].
    Commits,
}

impl CurveCase {
    /// All, in the order in which they run.
    pub const ALL: [Self; 7] = [
        Self::Idle,
        Self::Readers,
        Self::IdleTwoCores,
        Self::ReadersTwoCores,
        Self::Light,
        Self::TpccTwoCores,
        Self::TpccPartTwoCores,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Readers => "readers",
            Self::IdleTwoCores => "idle-two-cores",
            Self::ReadersTwoCores => "readers-two-cores",
            Self::Light => "light",
            Self::TpccTwoCores => "tpcc-two-cores",
            Self::TpccPartTwoCores => "tpcc-30pct-two-cores",
        }
    }

    pub fn reads(self) -> bool {
        matches!(self, Self::Readers | Self::ReadersTwoCores)
    }

    /// The standby has one core, and the player the other.
    pub fn is_apart(self) -> bool {
        matches!(self, Self::Idle | Self::Readers)
    }

    pub fn work(self) -> Work {
        match self {
            Self::TpccTwoCores | Self::TpccPartTwoCores => Work::TpcC,
            _ => Work::TpcB,
        }
    }

    pub fn temperature(self) -> Temperature {
        match self {
            Self::TpccPartTwoCores => Temperature::Part,
            _ => Temperature::Cached,
        }
    }

    pub fn unit(self) -> Unit {
        match self {
            Self::Idle | Self::Readers => Unit::Replayed,
            Self::IdleTwoCores | Self::ReadersTwoCores => Unit::Knee(Self::IdleTwoCores),
            Self::Light => Unit::Commits,
            Self::TpccTwoCores | Self::TpccPartTwoCores => Unit::Knee(self),
        }
    }

    /// The rates offered, as parts of the unit: those given, or else the case's own.
    pub fn rates(self, given: &[f64]) -> Vec<f64> {
        let own: &[f64] = match self {
            Self::Light => return vec![1.0],
            Self::Idle | Self::Readers => &[0.4, 0.7, 0.85, 1.0, 1.25],
            Self::IdleTwoCores | Self::ReadersTwoCores => &[0.7, 1.0, 1.15, 1.3, 1.45],
            Self::TpccTwoCores | Self::TpccPartTwoCores => &[0.9, 1.0, 1.05, 1.2],
        };
        match given {
            [] => own.to_vec(),
            given => given.to_vec(),
        }
    }
}
