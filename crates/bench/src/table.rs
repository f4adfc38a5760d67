//! Tables of results: lines are groups of rows, columns are figures of a group.

use crate::results::{Figures, ResultRow, Results};
use crate::trial::Variant;

/// Something with a name in results.
pub trait Named {
    fn name(&self) -> &'static str;
}

impl Named for &'static str {
    fn name(&self) -> &'static str {
        self
    }
}

impl Named for Variant {
    fn name(&self) -> &'static str {
        Variant::name(*self)
    }
}

/// Rows of one line of a table: all have the same case.
#[derive(Debug)]
pub struct Group<'r, F> {
    results: &'r Results<F>,
    rows: Vec<&'r ResultRow<F>>,
    first: &'r ResultRow<F>,
}

impl<'r, F: Figures> Group<'r, F> {
    /// None without rows.
    fn new(results: &'r Results<F>, rows: Vec<&'r ResultRow<F>>) -> Option<Self> {
        let first = rows.first().copied()?;
        Some(Self {
            results,
            rows,
            first,
        })
    }

    /// The results that it is a part of.
    pub fn results(&self) -> &'r Results<F> {
        self.results
    }

    pub fn first(&self) -> &ResultRow<F> {
        self.first
    }

    /// Median of a figure over its rows.
    pub fn median<V: Into<Option<f64>>>(&self, value: impl Fn(&F) -> V) -> Option<f64> {
        crate::replay_lag::median(
            self.rows
                .iter()
                .filter_map(|row| value(&row.figures).into()),
        )
    }

    /// Median of a figure over the rows of another variant in the group's case.
    pub fn median_of<V: Into<Option<f64>>>(
        &self,
        variant: &str,
        value: impl Fn(&F) -> V,
    ) -> Option<f64> {
        self.results.median(&self.first.case, variant, value)
    }
}

impl<F: Figures> Results<F> {
    /// A group for each row.
    pub fn each_row(&self) -> Vec<Group<'_, F>> {
        let rows = self.rows.iter();
        rows.filter_map(|row| Group::new(self, vec![row])).collect()
    }

    /// A group for each of these cases that has rows.
    pub fn each_case(&self, cases: impl IntoIterator<Item = String>) -> Vec<Group<'_, F>> {
        let rows = |case: String| self.rows.iter().filter(move |row| row.case == case);
        let groups = cases.into_iter().map(|case| rows(case).collect());
        groups.filter_map(|rows| Group::new(self, rows)).collect()
    }

    /// A group for each of these cases and variants that has rows.
    pub fn each<V: IntoIterator<Item = &'static str>>(
        &self,
        cases: impl IntoIterator<Item = (String, V)>,
    ) -> Vec<Group<'_, F>> {
        let mut groups = Vec::new();
        for (case, variants) in cases {
            for variant in variants {
                let rows = self.rows_of(&case, variant).collect();
                groups.extend(Group::new(self, rows));
            }
        }
        groups
    }
}

/// What a column shows of a group, if there is something to show.
#[derive(Debug)]
enum Cell<F> {
    Group(fn(&Group<'_, F>) -> Option<String>),
    Median {
        value: fn(&F) -> Option<f64>,
        show: fn(f64) -> String,
    },
}

#[derive(Debug)]
pub struct Column<F> {
    head: &'static str,
    cell: Cell<F>,
}

/// A column whose cells are made from the whole group.
pub fn column<F>(head: &'static str, cell: fn(&Group<'_, F>) -> Option<String>) -> Column<F> {
    let cell = Cell::Group(cell);
    Column { head, cell }
}

/// A column of medians: cells show the median of a figure over the group's rows.
pub fn median<F>(
    head: &'static str,
    value: fn(&F) -> Option<f64>,
    show: fn(f64) -> String,
) -> Column<F> {
    let cell = Cell::Median { value, show };
    Column { head, cell }
}

/// The case, under this head, the variant, and these columns.
pub fn by_case_and_variant<F: Figures, const N: usize>(
    head: &'static str,
    columns: [Column<F>; N],
) -> Vec<Column<F>> {
    let case = column(head, |group| Some(group.first().case.clone()));
    let variant = column("variant", |group| Some(group.first().variant.clone()));
    [case, variant].into_iter().chain(columns).collect()
}

/// Heads and cells; `-` where there is nothing to show.
pub fn table<F: Figures>(columns: &[Column<F>], groups: &[Group<'_, F>]) -> Vec<Vec<String>> {
    let head = columns.iter().map(|column| column.head.to_owned());
    let mut table = vec![head.collect()];
    table.extend(groups.iter().map(|group| {
        let cell = |column: &Column<F>| match column.cell {
            Cell::Group(cell) => cell(group),
            Cell::Median { value, show } => group.median(value).map(show),
        };
        let cells = columns.iter().map(cell);
        cells
            .map(|cell| cell.unwrap_or_else(|| "-".to_owned()))
            .collect()
    }));
    table
}
