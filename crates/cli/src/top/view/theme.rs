//! Colours. Everything that they show is also shown by characters.

use ratatui::style::{Color, Modifier, Style};

use crate::top::rows::Status;

/// The styles of everything that is drawn.
#[derive(Debug, Clone, Copy)]
pub struct Theme {
    colours: bool,
}

impl Theme {
    /// A theme with colours, or without.
    pub fn new(colours: bool) -> Self {
        Self { colours }
    }

    /// A theme with colours, unless NO_COLOR is set and not empty.
    pub fn from_environment() -> Self {
        Self::new(std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()))
    }

    fn colour(self, colour: Color) -> Style {
        match self.colours {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }

    /// Style of a row, by its status.
    pub fn status(self, status: Status) -> Style {
        match status {
            Status::Fine => Style::new(),
            Status::Asked => self.dim(),
            Status::Warning => self.colour(Color::Yellow),
            Status::Lag => self.colour(Color::Red),
            Status::Lost => self.colour(Color::Magenta),
        }
    }

    /// Style of what is good to know but not urgent.
    pub fn dim(self) -> Style {
        self.colour(Color::DarkGray)
    }

    /// Style of headings and keys.
    pub fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// Style of the selected row.
    pub fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// Style of the bars of sparklines and charts.
    pub fn bars(self) -> Style {
        self.colour(Color::Cyan)
    }
}
