//! `lockstep-lab bench replicas`: several replicas of one database, copied at the same time.

use clap::{Args, value_parser};
use lockstep_service::words::figures::{hundredths, tenths};
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::args::{RunArgs, joined, rounds, writes};
use crate::audience::Audience;
use crate::benchmark::{Benchmark, Order, Site, TurnOf};
use crate::copying::link::{Link, MBIT};
use crate::copying::servers::Servers;
use crate::copying::side_by_side;
use crate::copying::streams::{self, ROW_BYTES};
use crate::results::{Headline, Results, met, ratio, rounded};
use crate::table::{Column, Group, Named, by_case_and_variant, median};

/// Megabytes that a run may need for each megabyte of rows, for the source and for each replica.
const SPACE_FACTOR: u64 = 3;

/// Part of the link that one replica is expected to fill.
const OF_THE_LINK: f64 = 0.86;

/// Numbers of replicas.
const NUMBERS: [u32; 3] = [1, 2, 4];

/// What all the replicas share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    link: Link,
    replicas: u32,
}

impl Case {
    fn all(links: &[Link]) -> Vec<Self> {
        let of = |link: &Link| {
            NUMBERS.map(|replicas| Self {
                link: *link,
                replicas,
            })
        };
        links.iter().flat_map(of).collect()
    }

    /// `loopback-1`, `link-4`.
    fn name(self) -> String {
        format!("{}-{}", self.link.name(), self.replicas)
    }
}

/// Who copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicasVariant {
    /// Bytes through sockets, without servers.
    Raw,
    /// The initial synchronisation of subscriptions.
    Stock,
    /// Calls of `lockstep replica create`.
    Lockstep,
}

impl ReplicasVariant {
    const ALL: [Self; 3] = [Self::Raw, Self::Stock, Self::Lockstep];
}

impl Named for ReplicasVariant {
    fn name(&self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Stock => "stock",
            Self::Lockstep => "lockstep",
        }
    }
}

/// One, two and four replicas of one database at the same time
///
/// Writes replicas.json into the results folder. Source and target server have a core each. In cases link-…
/// all that the source sends goes through a network namespace of this benchmark, whose loopback tc limits to
/// 400 Mbit/s; they are left out without root. raw sends as many bytes through as many sockets. Rates are of
/// the rows in the binary format: together over the time from the start of all commands until the last has
/// ended, each over the time that its rows took.
#[derive(Debug, Args)]
#[command(
    mut_arg("rounds", rounds("Copies by each variant", "3")),
    mut_arg("results", writes("replicas.json"))
)]
pub struct ReplicasArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// Megabytes of rows, in the binary format
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = value_parser!(u32).range(1..=100_000))]
    pub megabytes: u32,
    /// What to copy through, separated by commas
    #[arg(long, value_enum, value_name = "LINKS", value_delimiter = ',', default_values_t = Link::ALL)]
    pub links: Vec<Link>,
}

/// One round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReplicasFigures {
    pub replicas: u32,
    /// Rows of one replica.
    pub data_mb: f64,
    /// All replicas together.
    pub mb_per_s: f64,
    /// Rows of one replica, over the time that they took: the median of all.
    pub mb_per_s_each: f64,
    pub seconds: f64,
    pub source_cpu_s: f64,
    pub target_cpu_s: f64,
}

impl ReplicasArgs {
    fn rows(&self) -> u64 {
        u64::from(self.megabytes) * 1_000_000 / ROW_BYTES
    }
}

impl Benchmark for ReplicasArgs {
    const NAME: &'static str = "replicas";
    const ORDER: Order = Order::TurnAbout;

    type Case = Case;
    type Variant = ReplicasVariant;
    type Figures = ReplicasFigures;
    type Scene = Servers;

    fn options(&self) -> String {
        let links = joined(self.links.iter().map(|link| link.name()));
        format!(
            "{} --megabytes {} --links {links}",
            self.run, self.megabytes
        )
    }

    fn space_mb(&self) -> u64 {
        let most = u64::from(NUMBERS.into_iter().max().unwrap_or(1));
        SPACE_FACTOR * u64::from(self.megabytes) * (1 + most)
    }

    fn needs_extension(&self) -> bool {
        false
    }

    fn needs_product(&self) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let can_be: Vec<_> = (self.links.iter().copied())
            .filter(|link| link.missing().is_none())
            .collect();
        Case::all(&can_be)
    }

    fn case_name(&self, case: &Case) -> String {
        case.name()
    }

    fn variants(&self, _case: &Case) -> Vec<ReplicasVariant> {
        ReplicasVariant::ALL.to_vec()
    }

    fn conditions(&self) -> Option<String> {
        let missing = self.links.iter().filter_map(|link| link.missing());
        missing.map(|why| format!("SKIP link: {why}")).next()
    }

    fn open(&self, site: Site<'_>, _audience: &mut dyn Audience) -> Result<Servers> {
        // Before any server listens: it listens in the namespace.
        if self.cases().iter().any(|case| case.link == Link::Link) {
            Link::enter(site.lab)?;
        }
        let mut servers = Servers::start(site.lab)?;
        servers.fill(&streams::filled(self.rows()))?;
        Ok(servers)
    }

    fn enter(
        &self,
        site: Site<'_>,
        _scene: &mut Servers,
        case: &Case,
        _audience: &mut dyn Audience,
    ) -> Result<()> {
        match self.cases().iter().any(|case| case.link == Link::Link) {
            true => case.link.set(site.lab),
            false => Ok(()),
        }
    }

    fn measure(
        &self,
        site: Site<'_>,
        scene: &mut Servers,
        turn: &TurnOf<Self>,
        _audience: &mut dyn Audience,
    ) -> Result<ReplicasFigures> {
        let replicas = turn.case.replicas;
        let bytes = self.rows() * ROW_BYTES;
        let all_bytes = bytes * u64::from(replicas);
        if turn.variant != ReplicasVariant::Raw {
            side_by_side::databases(scene, replicas)?;
        }
        let before = scene.meter();
        let (seconds, each) = match turn.variant {
            ReplicasVariant::Raw => {
                let took = streams::loopback(site.lab.pinning(), replicas, all_bytes)?;
                (took.seconds, took.seconds)
            }
            ReplicasVariant::Stock => side_by_side::subscriptions(site.lab, scene, replicas)?,
            ReplicasVariant::Lockstep => side_by_side::replicas(site, scene, replicas)?,
        };
        let spent = scene.spent_since(&before);
        if turn.variant != ReplicasVariant::Raw {
            side_by_side::check_and_remove(scene, replicas)?;
        }
        let rate = |bytes: u64, seconds: f64| rounded(bytes as f64 / 1e6 / seconds.max(1e-6));
        Ok(ReplicasFigures {
            replicas,
            data_mb: rounded(bytes as f64 / 1e6),
            mb_per_s: rate(all_bytes, seconds),
            mb_per_s_each: rate(bytes, each),
            seconds: rounded(seconds),
            source_cpu_s: rounded(spent.source_cpu_s),
            target_cpu_s: rounded(spent.target_cpu_s),
        })
    }

    fn line(&self, figures: &ReplicasFigures) -> String {
        format!(
            "{:.1} MB/s together, {:.1} MB/s each, {:.1} s",
            figures.mb_per_s, figures.mb_per_s_each, figures.seconds
        )
    }

    fn headline(&self, results: &Results<ReplicasFigures>) -> Option<Headline> {
        let case = Case {
            link: Link::Loopback,
            replicas: 4,
        };
        let (ours, stock) = results.ours_and_stock(&case.name(), |row| row.mb_per_s)?;
        Some(Headline {
            metric: format!("{}: MB/s together, median over rounds", case.name()),
            ours: rounded(ours),
            stock: rounded(stock),
            ratio: ratio(ours, stock, 2),
        })
    }

    fn columns(&self) -> Vec<Column<ReplicasFigures>> {
        by_case_and_variant(
            "median over rounds",
            [
                median("MB/s", |row| Some(row.mb_per_s), tenths),
                median("MB/s each", |row| Some(row.mb_per_s_each), tenths),
                median("seconds", |row| Some(row.seconds), hundredths),
                median("source CPU s", |row| Some(row.source_cpu_s), hundredths),
                median("target CPU s", |row| Some(row.target_cpu_s), hundredths),
            ],
        )
    }

    fn groups<'r>(&self, results: &'r Results<ReplicasFigures>) -> Vec<Group<'r, ReplicasFigures>> {
        let names = ReplicasVariant::ALL.map(|variant| variant.name());
        results.each(
            Case::all(&Link::ALL)
                .into_iter()
                .map(|case| (case.name(), names)),
        )
    }

    fn remarks(&self, results: &Results<ReplicasFigures>) -> Vec<String> {
        let by = |case: Case, variant: ReplicasVariant| {
            results.median(&case.name(), variant.name(), |row| row.mb_per_s)
        };
        let mut lines = Vec::new();
        for case in Case::all(&Link::ALL) {
            let ours = by(case, ReplicasVariant::Lockstep);
            let Some(ours) = ours else { continue };
            // Of one replica its rows alone: schema and statistics do not go through the link.
            let rows = match case.replicas {
                1 => results.median(&case.name(), "lockstep", |row| row.mb_per_s_each),
                _ => Some(ours),
            };
            if let Some((rows, raw)) = rows.zip(by(case, ReplicasVariant::Raw)) {
                let share = rows / raw;
                let aim = match (case.link, case.replicas) {
                    (Link::Link, 1) => {
                        format!(" ({OF_THE_LINK} or more: {})", met(share >= OF_THE_LINK))
                    }
                    _ => String::new(),
                };
                lines.push(format!(
                    "{}: {share:.2} of what sockets alone move{aim}",
                    case.name()
                ));
            }
            let one = Case {
                replicas: 1,
                ..case
            };
            if let Some(one) = by(one, ReplicasVariant::Lockstep).filter(|_| case != one) {
                lines.push(format!(
                    "{}: {:.2} of what one replica moves (1 or more: {})",
                    case.name(),
                    ours / one,
                    met(ours >= one)
                ));
            }
        }
        if lines.iter().any(|line| line.starts_with(Link::Link.name())) {
            lines.push(format!("the link is limited to {MBIT} Mbit/s"));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmarks::parsed;
    use crate::results::ResultRow;

    #[test]
    fn replicas_are_held_against_the_link_and_against_one() {
        let args: ReplicasArgs = parsed("");
        let row = |case: &str, variant: ReplicasVariant, mb_per_s| {
            ResultRow::for_tests(
                case,
                variant.name(),
                ReplicasFigures {
                    replicas: 1,
                    data_mb: 1.0,
                    mb_per_s,
                    mb_per_s_each: mb_per_s,
                    seconds: 1.0,
                    source_cpu_s: 1.0,
                    target_cpu_s: 1.0,
                },
            )
        };
        let results = Results::for_tests(
            ReplicasArgs::NAME,
            vec![
                row("link-1", ReplicasVariant::Raw, 50.0),
                row("link-1", ReplicasVariant::Lockstep, 42.0),
                row("link-2", ReplicasVariant::Lockstep, 45.0),
            ],
        );
        assert_eq!(
            args.remarks(&results),
            [
                "link-1: 0.84 of what sockets alone move (0.86 or more: not met)",
                "link-2: 1.07 of what one replica moves (1 or more: met)",
                "the link is limited to 400 Mbit/s",
            ]
        );
    }
}
