//! Progress of a long run: bars on a terminal, plain lines elsewhere.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use lockstep_bench::audience::{Phase, Stage, Tick, Trials};
use lockstep_service::words::figures;
use lockstep_service::words::output::{self, Output};

/// Time between plain lines while load runs.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Steps of the progress bar.
const STEPS: u64 = 1000;

/// Progress of a run made of phases.
pub struct Live {
    view: View,
    phases: Vec<Phase>,
    /// Phases that have begun.
    begun: usize,
    started: Instant,
    phase_started: Instant,
    /// How long the preparation of a phase takes: a guess at first, then the time of the last one.
    preparation: Duration,
    /// How long the current phase's load has run.
    load_done: Duration,
    warmup: Duration,
    measured: Duration,
    loading: bool,
    last_line: Option<Instant>,
}

enum View {
    Bars {
        all: MultiProgress,
        total: ProgressBar,
        lines: Vec<ProgressBar>,
    },
    Lines {
        to_stderr: bool,
    },
}

impl Live {
    /// Progress over trials.
    pub fn new(output: Output, trials: Trials) -> Self {
        let Trials {
            phases,
            preparation,
            warmup,
        } = trials;
        let now = Instant::now();
        let mut live = Self {
            view: View::Lines {
                to_stderr: output == Output::Json,
            },
            begun: 0,
            started: now,
            phase_started: now,
            preparation,
            load_done: Duration::ZERO,
            warmup,
            measured: Duration::ZERO,
            loading: false,
            last_line: None,
            phases,
        };
        if output == Output::Text && io::stdout().is_terminal() {
            live.view = live.bars();
        }
        live
    }

    fn bars(&self) -> View {
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stdout());
        let total = all.add(ProgressBar::new(STEPS));
        let style = |template: &str| {
            ProgressStyle::with_template(template)
                .unwrap_or_else(|_| ProgressStyle::default_bar())
                .progress_chars("█▌ ")
        };
        total.set_style(style("[{bar:40}] {percent:>3} %  {msg}"));
        let width = self.phases.iter().map(|phase| phase.name.len()).max();
        let template = format!("{{prefix:{}}}  {{msg}}", width.unwrap_or(0));
        let lines = self
            .phases
            .iter()
            .map(|phase| {
                let line = all.add(ProgressBar::new_spinner());
                line.set_style(style(&template));
                line.set_prefix(phase.name.clone());
                line.set_message("waits");
                line
            })
            .collect();
        View::Bars { all, total, lines }
    }

    /// Prints one line that stays on the screen.
    pub fn say(&self, line: &str) {
        // Ignore errors: the run goes on even if nobody reads its output any more.
        match &self.view {
            View::Bars { all, .. } => {
                let _ = all.println(line);
            }
            View::Lines { to_stderr: true } => {
                let _ = writeln!(io::stderr(), "{line}");
            }
            View::Lines { to_stderr: false } => {
                output::print(line);
            }
        }
    }

    /// The next phase begins.
    pub fn begin(&mut self) {
        self.begun += 1;
        self.phase_started = Instant::now();
        self.load_done = Duration::ZERO;
        self.loading = false;
    }

    /// Ends the current phase with one line about its result.
    pub fn end(&mut self, result: &str) {
        self.load_done = self.phase().load;
        match &self.view {
            View::Bars { lines, .. } => {
                if let Some(line) = lines.get(self.current()) {
                    line.finish_with_message(result.to_owned());
                }
            }
            View::Lines { .. } => self.say(&format!("{}: {result}", self.phase().name)),
        }
    }

    /// Ends the run. The bar of the whole run is removed; printed lines stay.
    pub fn finish(&self) {
        if let View::Bars { total, .. } = &self.view {
            total.finish_and_clear();
        }
    }

    /// The phase that has begun last, or the first.
    fn current(&self) -> usize {
        self.begun.saturating_sub(1)
    }

    fn phase(&self) -> Phase {
        self.phases.get(self.current()).cloned().unwrap_or(Phase {
            name: String::new(),
            load: Duration::ZERO,
        })
    }

    /// Expected time until the end of the run.
    fn left(&self) -> Duration {
        let later = self
            .phases
            .iter()
            .skip(self.current() + 1)
            .map(|phase| phase.load + self.preparation)
            .sum::<Duration>();
        let preparing = match self.loading {
            true => Duration::ZERO,
            false => self
                .preparation
                .saturating_sub(self.phase_started.elapsed()),
        };
        later + preparing + self.phase().load.saturating_sub(self.load_done)
    }

    fn show(&mut self, status: &str, now: bool) {
        let left = self.left();
        let remaining = format!("about {} left", figures::duration(left.as_secs()));
        match &self.view {
            View::Bars { total, lines, .. } => {
                let elapsed = self.started.elapsed().as_secs_f64();
                let part = elapsed / (elapsed + left.as_secs_f64()).max(0.001);
                total.set_position((part * STEPS as f64) as u64);
                total.set_message(remaining);
                if let Some(line) = lines.get(self.current()) {
                    line.set_message(status.to_owned());
                }
            }
            View::Lines { .. } => {
                if now || self.last_line.is_none_or(|at| at.elapsed() >= LINE_EVERY) {
                    self.last_line = Some(Instant::now());
                    self.say(&format!("{}: {status}, {remaining}", self.phase().name));
                }
            }
        }
    }

    /// A stage of the current phase begins.
    pub fn stage(&mut self, stage: Stage) {
        let status = match stage {
            Stage::LoadData => "loading fresh data into the primary",
            Stage::MakeStandby => "making the standby",
            Stage::WarmUp => {
                self.preparation = self.phase_started.elapsed();
                self.loading = true;
                "warming up"
            }
            Stage::Measure => {
                self.load_done = self.warmup;
                "measuring"
            }
        };
        self.measured = self.phase().load.saturating_sub(self.warmup);
        self.show(status, true);
    }

    /// A moment of the current phase under load.
    pub fn tick(&mut self, tick: &Tick) {
        let (what, done, total) = match tick.stage {
            Stage::Measure => ("measuring", self.warmup + tick.elapsed, self.measured),
            _ => ("warming up", tick.elapsed, self.warmup),
        };
        self.load_done = done;
        let status = format!(
            "lag {:>7}  primary {:>6} tps  reads {:>6}/s  {what} {} of {} s",
            tick.lag_ms.map_or_else(|| "-".to_owned(), figures::ms),
            tick.primary_tps
                .map_or_else(|| "-".to_owned(), figures::count),
            tick.read_tps.map_or_else(|| "-".to_owned(), figures::count),
            tick.elapsed.as_secs(),
            total.as_secs(),
        );
        self.show(&status, false);
    }
}
