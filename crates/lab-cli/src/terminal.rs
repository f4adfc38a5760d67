//! The terminal as the audience of benchmarks and of the demo.

use lockstep_bench::audience::{Ahead, Audience, Stage, Tick};
use lockstep_service::words::output::{self, Output};

use crate::live::Live;
use crate::steps::Steps;

/// Shows a run as what it is made of.
pub struct Terminal {
    output: Output,
    shown: Shown,
}

enum Shown {
    Nothing,
    Steps(Steps),
    Trials(Box<Live>),
}

impl Terminal {
    pub fn new(output: Output) -> Self {
        Self {
            output,
            shown: Shown::Nothing,
        }
    }
}

impl Audience for Terminal {
    fn expect(&mut self, ahead: Ahead) {
        self.shown = match ahead {
            Ahead::Steps(steps) => Shown::Steps(Steps::new(steps)),
            Ahead::Trials(trials) => Shown::Trials(Box::new(Live::new(self.output, trials))),
        };
    }

    fn say(&mut self, line: &str) {
        match &self.shown {
            Shown::Trials(live) => live.say(line),
            Shown::Nothing | Shown::Steps(_) => output::print(line),
        }
    }

    fn begin(&mut self, name: &str) {
        match &mut self.shown {
            Shown::Nothing => {}
            Shown::Steps(steps) => steps.begin(name),
            Shown::Trials(live) => live.begin(),
        }
    }

    fn end(&mut self, result: &str) {
        match &mut self.shown {
            Shown::Nothing => {}
            Shown::Steps(steps) => steps.end(result),
            Shown::Trials(live) => live.end(result),
        }
    }

    fn stage(&mut self, stage: Stage) {
        if let Shown::Trials(live) = &mut self.shown {
            live.stage(stage);
        }
    }

    fn tick(&mut self, tick: &Tick) {
        if let Shown::Trials(live) = &mut self.shown {
            live.tick(tick);
        }
    }

    fn finish(&mut self) {
        if let Shown::Trials(live) = &self.shown {
            live.finish();
        }
    }

    fn result(&mut self, line: &str) {
        output::print(line);
    }
}
