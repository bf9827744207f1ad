//! How the screen is drawn.

use ratatui::style::{Color, Modifier, Style};

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Theme {
    /// ASCII characters only.
    pub(super) ascii: bool,
    pub(super) color: bool,
}

impl Theme {
    /// A warning.
    pub(super) fn alarm(self) -> Style {
        if self.color { Style::new().fg(Color::Red).add_modifier(Modifier::BOLD) } else { Style::new().add_modifier(Modifier::BOLD) }
    }

    /// A figure that matters.
    pub(super) fn figure(self) -> Style {
        if self.color { Style::new().fg(Color::Cyan) } else { Style::new() }
    }

    /// The head of a table.
    pub(super) fn head(self) -> Style {
        let reversed = Style::new().add_modifier(Modifier::REVERSED);
        if self.color { reversed.fg(Color::Green) } else { reversed }
    }
}
