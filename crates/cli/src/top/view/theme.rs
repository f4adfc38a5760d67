//! Colours, which say nothing that characters do not say too.

use ratatui::style::{Color, Modifier, Style};

use crate::top::rows::Status;

/// How things look.
#[derive(Debug, Clone, Copy)]
pub struct Theme {
    colours: bool,
}

impl Theme {
    /// With colours or without.
    pub fn new(colours: bool) -> Self {
        Self { colours }
    }

    /// With colours, unless NO_COLOR is set and not empty.
    pub fn from_environment() -> Self {
        Self::new(std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()))
    }

    fn colour(self, colour: Color) -> Style {
        match self.colours {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }

    /// Of a row, by how it is doing.
    pub fn status(self, status: Status) -> Style {
        match status {
            Status::Fine => Style::new(),
            Status::Asked => self.dim(),
            Status::Warning => self.colour(Color::Yellow),
            Status::Lag => self.colour(Color::Red),
            Status::Lost => self.colour(Color::Magenta),
        }
    }

    /// What is good to know and not urgent.
    pub fn dim(self) -> Style {
        self.colour(Color::DarkGray)
    }

    /// Headings and keys.
    pub fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// The selected row.
    pub fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// Bars of sparklines and charts.
    pub fn bars(self) -> Style {
        self.colour(Color::Cyan)
    }
}
