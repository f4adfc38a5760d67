//! The state of the screen: what is shown, in which order, and what is selected. Keys and samples
//! change it. It uses neither a terminal nor a clock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use lockstep_lag::monitor::{LinkHistory, Moment, MonitorState};

use super::keys::Action;
use super::rows::{SortBy, Status, TopRow, rows, sort};

/// How far sparklines can go back, in minutes.
const SPANS: [i64; 4] = [2, 10, 30, 60];

/// History older than this is forgotten, in milliseconds.
const REMEMBERED_MS: i64 = 3_600_000;

/// The page on the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Page {
    /// The table of all nodes.
    Table,
    /// Details of the selected row.
    Detail,
}

/// The state of the screen.
#[derive(Debug)]
pub struct Model {
    /// Index of the cluster among all, and their number.
    pub place: (usize, usize),
    /// The state that is shown. While paused it is older than the newest sample.
    pub state: Arc<MonitorState>,
    /// The rows of this state, in the order in which they are shown.
    pub rows: Vec<TopRow>,
    /// The page on the screen.
    pub page: Page,
    /// Help is shown in place of the page.
    pub help: bool,
    pub sort: SortBy,
    /// The rows are in reverse order.
    pub reverse: bool,
    /// New samples are not shown.
    pub paused: bool,
    /// The user wants to quit.
    pub quit: bool,
    /// The first row that is shown.
    pub offset: usize,
    /// The first line of the details that is shown.
    pub scroll: usize,
    /// The first line of the help that is shown.
    pub help_scroll: usize,
    /// How many rows or lines fit on the screen. Drawing sets it ([`Model::fit`]).
    fits: usize,
    /// How many rows or lines do not fit.
    beyond: usize,
    span: usize,
    /// Key of the selected row. None selects the row with the worst status.
    selected: Option<String>,
    /// Index of the selected row in `rows`.
    index: usize,
    series: BTreeMap<String, VecDeque<Moment>>,
    /// Time of the newest moment in `series`.
    newest_ms: i64,
}

impl Model {
    /// A table sorted by lag, without a selection.
    pub fn new(state: Arc<MonitorState>) -> Self {
        let mut model = Self {
            place: (0, 1),
            state,
            rows: Vec::new(),
            page: Page::Table,
            help: false,
            sort: SortBy::Lag,
            reverse: false,
            paused: false,
            quit: false,
            offset: 0,
            scroll: 0,
            help_scroll: 0,
            fits: 1,
            beyond: 0,
            span: 0,
            selected: None,
            index: 0,
            series: BTreeMap::new(),
            newest_ms: i64::MIN,
        };
        model.arrange();
        model
    }

    /// Time of the newest history; the monitor is asked for what is newer.
    pub fn newest_ms(&self) -> i64 {
        self.newest_ms
    }

    /// Takes a new sample and new history. While paused the sample is not shown, but its history
    /// is kept.
    pub fn update(&mut self, state: Arc<MonitorState>, history: Vec<LinkHistory>) {
        for link in history {
            let series = self.series.entry(link.id).or_default();
            series.extend(link.moments);
            let last_ms = series.back().map_or(i64::MIN, |moment| moment.at_ms);
            self.newest_ms = self.newest_ms.max(last_ms);
        }
        let forgotten_ms = self.newest_ms.saturating_sub(REMEMBERED_MS);
        self.series.retain(|_, series| {
            let kept = series.partition_point(|moment| moment.at_ms < forgotten_ms);
            series.drain(..kept);
            !series.is_empty()
        });
        if !self.paused {
            self.state = state;
            self.arrange();
        }
    }

    /// Does what a key asks for.
    pub fn act(&mut self, action: Action) {
        match action {
            Action::Quit => self.quit = true,
            Action::Help => {
                self.help = !self.help;
                self.help_scroll = 0;
            }
            Action::Pause => self.paused = !self.paused,
            Action::Span => self.span = (self.span + 1) % SPANS.len(),
            _ if self.help => match action {
                Action::Back => self.help = false,
                _ => self.help_scroll = self.moved(self.help_scroll, action, self.beyond),
            },
            _ => match self.page {
                Page::Table => self.act_on_table(action),
                Page::Detail => self.act_on_detail(action),
            },
        }
    }

    fn act_on_table(&mut self, action: Action) {
        match action {
            Action::Open if self.rows.is_empty() => {}
            Action::Open => {
                self.select(self.index);
                self.page = Page::Detail;
                self.scroll = 0;
            }
            Action::Back => {
                self.selected = None;
                self.arrange();
            }
            Action::Sort(by) => {
                self.reverse = false;
                self.sort = by;
                self.arrange();
            }
            Action::Reverse => {
                self.reverse = !self.reverse;
                self.arrange();
            }
            Action::Up
            | Action::Down
            | Action::PageUp
            | Action::PageDown
            | Action::First
            | Action::Last => {
                let last = self.rows.len().saturating_sub(1);
                self.select(self.moved(self.index, action, last));
            }
            _ => {}
        }
    }

    fn act_on_detail(&mut self, action: Action) {
        match action {
            Action::Back => self.page = Page::Table,
            Action::Previous | Action::Next => {
                let by = if action == Action::Next { 1 } else { -1 };
                self.select(self.index.saturating_add_signed(by));
                self.scroll = 0;
            }
            _ => self.scroll = self.moved(self.scroll, action, self.beyond),
        }
    }

    /// The position to which a key moves from `from`, at most `last`.
    fn moved(&self, from: usize, action: Action, last: usize) -> usize {
        let page = self.fits.max(2) - 1;
        let to = match action {
            Action::Up => from.saturating_sub(1),
            Action::Down => from + 1,
            Action::PageUp => from.saturating_sub(page),
            Action::PageDown => from + page,
            Action::First => 0,
            Action::Last => last,
            _ => from,
        };
        to.min(last)
    }

    /// Called by drawing: `fits` of `all` rows or lines fit on the screen. Scrolls so that the
    /// selected row stays visible.
    pub fn fit(&mut self, fits: usize, all: usize) {
        self.fits = fits.max(1);
        self.beyond = all.saturating_sub(self.fits);
        match self.page {
            _ if self.help => self.help_scroll = self.help_scroll.min(self.beyond),
            Page::Table => {
                let least = (self.index + 1).saturating_sub(self.fits);
                self.offset = self.offset.clamp(least, self.index.max(least));
                self.offset = self.offset.min(self.beyond);
            }
            Page::Detail => self.scroll = self.scroll.min(self.beyond),
        }
    }

    /// The selected row.
    pub fn row(&self) -> Option<&TopRow> {
        self.rows.get(self.index)
    }

    /// Index of the selected row.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Minutes that sparklines go back.
    pub fn minutes(&self) -> i64 {
        SPANS.get(self.span).copied().unwrap_or(1)
    }

    /// Times (ms since 1970) and lags (ms) of a row, oldest first. A lost node keeps its history.
    pub fn series<'a>(&'a self, row: &'a TopRow) -> impl Iterator<Item = (i64, f64)> + 'a {
        let link = row.link.and_then(|index| self.state.links.get(index));
        let series = match link {
            Some(link) => self.series.get(&link.id),
            None => self
                .series
                .iter()
                .find(|(id, _)| id.split_once('/').is_some_and(|(_, name)| name == row.key))
                .map(|(_, series)| series),
        };
        let moments = series.into_iter().flatten();
        moments.map(|moment| (moment.at_ms, moment.lag_ms))
    }

    fn select(&mut self, index: usize) {
        self.index = index.min(self.rows.len().saturating_sub(1));
        self.selected = self.row().map(|row| row.key.clone());
    }

    /// Makes the rows anew. The selection stays with its row, or at its index if the row is gone.
    fn arrange(&mut self) {
        self.rows = rows(&self.state);
        sort(&mut self.rows, self.sort, self.reverse);
        let at = |key: &String| self.rows.iter().position(|row| row.key == *key);
        let found = self.selected.as_ref().map(at);
        self.index = match found {
            Some(Some(index)) => index,
            Some(None) => self.index,
            None => worst(&self.rows),
        };
        if found == Some(None) {
            self.page = Page::Table;
        }
        self.index = self.index.min(self.rows.len().saturating_sub(1));
    }
}

/// Index of the first row with the worst status.
fn worst(rows: &[TopRow]) -> usize {
    let most = rows.iter().map(|row| row.status).max();
    let most = most.unwrap_or(Status::Fine);
    let first = rows.iter().position(|row| row.status == most);
    first.unwrap_or(0)
}
