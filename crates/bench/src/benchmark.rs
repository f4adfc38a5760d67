//! What every benchmark is made of. [`crate::runner::run`] runs it: rounds, results file,
//! table and plots are the same for all.

use std::path::Path;

use clap::Args;
use lockstep_lab::cluster::Lab;
use lockstep_service::words::lines;

use crate::Result;
use crate::args::RunArgs;
use crate::audience::{Ahead, Audience};
use crate::results::{Figures, Headline, ResultRow, Results, SeriesRow};
use crate::table::{Column, Group, Named, table};

/// One measurement of the plan.
#[derive(Debug, Clone)]
pub struct Turn<C, V> {
    pub case: C,
    pub variant: V,
    /// The round's number, from 1.
    pub round: u32,
}

pub type TurnOf<B> = Turn<<B as Benchmark>::Case, <B as Benchmark>::Variant>;

/// The order in which a benchmark takes its turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// All rounds of a case, its variants in turn, before the next case.
    CaseByCase,
    /// All cases in each round. As no case is complete before the last round, each row is
    /// written as soon as it is measured.
    SideBySide,
    /// Like [`Order::CaseByCase`], but every other round begins with the last variant, so that
    /// being first is no advantage.
    TurnAbout,
}

/// Where a benchmark runs.
#[derive(Debug, Clone, Copy)]
pub struct Site<'a> {
    pub lab: &'a Lab,
    /// The product's program, which is there if the benchmark needs it.
    pub product: &'a Path,
}

/// A plot, as a file beside the results.
#[derive(Debug, Clone)]
pub struct Plot {
    pub file: String,
    pub svg: String,
}

/// A measurement of several variants in one or more cases. Its arguments implement it, with a
/// field `run`, and a line in [`crate::benchmarks`] makes it a command.
pub trait Benchmark: Args + AsRef<RunArgs> {
    /// Name of the command and of the results file.
    const NAME: &'static str;
    const ORDER: Order = Order::CaseByCase;

    type Case: Clone;
    type Variant: Copy + Named;
    /// What one turn measures, as keys of a row.
    type Figures: Figures;
    /// Servers, recordings and the like, which stay from one turn to the next.
    type Scene;

    /// The command's options, with defaults spelled out.
    fn options(&self) -> String;
    /// Megabytes of free space that a run may need.
    fn space_mb(&self) -> u64;

    fn needs_extension(&self) -> bool {
        true
    }

    /// Whether it starts the program `lockstep`.
    fn needs_product(&self) -> bool {
        false
    }

    /// The cases to run, in order.
    fn cases(&self) -> Vec<Self::Case>;
    /// The name of a case in results, where cases of the same name are one case.
    fn case_name(&self, case: &Self::Case) -> String;
    /// The variants to run, in order.
    fn variants(&self, case: &Self::Case) -> Vec<Self::Variant>;

    /// A variant has a turn in this round.
    fn takes_part(&self, _variant: Self::Variant, _round: u32) -> bool {
        true
    }

    /// All turns, in order.
    fn plan(&self) -> Vec<TurnOf<Self>> {
        let turns = |case: &Self::Case, round: u32| {
            let mut variants = self.variants(case);
            variants.retain(|&variant| self.takes_part(variant, round));
            if Self::ORDER == Order::TurnAbout && round % 2 == 0 {
                variants.reverse();
            }
            let case = case.clone();
            variants.into_iter().map(move |variant| Turn {
                case: case.clone(),
                variant,
                round,
            })
        };
        let (cases, rounds) = (self.cases(), 1..=self.as_ref().rounds);
        match Self::ORDER {
            Order::SideBySide => rounds
                .flat_map(|round| cases.iter().flat_map(move |case| turns(case, round)))
                .collect(),
            Order::CaseByCase | Order::TurnAbout => cases
                .iter()
                .flat_map(|case| rounds.clone().flat_map(move |round| turns(case, round)))
                .collect(),
        }
    }

    /// What the run is made of, for its audience.
    fn ahead(&self, plan: &[TurnOf<Self>]) -> Ahead {
        Ahead::Steps(plan.len())
    }

    /// A line about the conditions, before the first turn.
    fn conditions(&self) -> Option<String> {
        None
    }

    /// Starts what all turns need.
    fn open(&self, site: Site<'_>, audience: &mut dyn Audience) -> Result<Self::Scene>;

    /// Readies a case before its turns.
    fn enter(
        &self,
        _site: Site<'_>,
        _scene: &mut Self::Scene,
        _case: &Self::Case,
        _audience: &mut dyn Audience,
    ) -> Result<()> {
        Ok(())
    }

    /// The name of a turn for people.
    fn label(&self, _scene: &Self::Scene, turn: &TurnOf<Self>) -> String {
        let case = self.case_name(&turn.case);
        format!("{case} {} {}", turn.round, turn.variant.name())
    }

    /// Takes a turn.
    fn measure(
        &self,
        site: Site<'_>,
        scene: &mut Self::Scene,
        turn: &TurnOf<Self>,
        audience: &mut dyn Audience,
    ) -> Result<Self::Figures>;

    /// The rows of a case that this run has measured are enough: its later rounds are left out.
    fn is_enough(&self, _rows: &[&ResultRow<Self::Figures>]) -> bool {
        false
    }

    /// The result of a turn in one line.
    fn line(&self, figures: &Self::Figures) -> String;

    /// The names of the cases that get a row from a turn: only its own, unless cases share turns.
    fn counts_for(&self, turn: &TurnOf<Self>) -> Vec<String> {
        vec![self.case_name(&turn.case)]
    }

    /// A complete case over time.
    fn series(&self, _scene: &Self::Scene, _case: &str) -> Vec<SeriesRow> {
        vec![]
    }

    /// The plot of a complete case.
    fn plot(
        &self,
        _scene: &Self::Scene,
        _case: &str,
        _results: &Results<Self::Figures>,
    ) -> Option<Plot> {
        None
    }

    /// The one figure to look at first.
    fn headline(&self, results: &Results<Self::Figures>) -> Option<Headline>;

    /// Columns of the table. Without columns there is no table.
    fn columns(&self) -> Vec<Column<Self::Figures>> {
        vec![]
    }

    /// Lines of the table.
    fn groups<'r>(&self, results: &'r Results<Self::Figures>) -> Vec<Group<'r, Self::Figures>> {
        let cases = self.cases();
        let names = cases.iter().map(|case| self.case_name(case));
        results.each(names.map(|case| (case, ["stock", "lockstep"])))
    }

    /// Lines after the table.
    fn remarks(&self, _results: &Results<Self::Figures>) -> Vec<String> {
        vec![]
    }

    /// All lines of the result.
    fn report(&self, results: &Results<Self::Figures>) -> Vec<String> {
        let columns = self.columns();
        let mut lines = match columns.is_empty() {
            true => vec![],
            false => lines::table(&table(&columns, &self.groups(results))),
        };
        lines.extend(self.remarks(results));
        lines
    }
}
