//! The meaning of keys. It uses no terminal.

use termina::event::{KeyCode, KeyEvent, KeyEventKind, Modifiers};

use super::rows::SortBy;

/// What a key asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Up,
    Down,
    PageUp,
    PageDown,
    /// Go to the first row or line.
    First,
    /// Go to the last row or line.
    Last,
    /// Show the selected row's details.
    Open,
    /// Close the help or the details. In the table: undo the selection.
    Back,
    /// In the details: go to the previous row.
    Previous,
    /// In the details: go to the next row.
    Next,
    /// Sort the rows.
    Sort(SortBy),
    /// Reverse the order.
    Reverse,
    /// Let sparklines go back further; after the longest span the shortest follows.
    Span,
    /// Stop showing new samples, or show them again.
    Pause,
    /// Show the next cluster.
    Cluster,
    /// Show or hide the help.
    Help,
    Quit,
}

/// The action of a key; None if it has none.
pub fn action(key: KeyEvent) -> Option<Action> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    if key.modifiers.contains(Modifiers::CONTROL) {
        return (key.code == KeyCode::Char('c')).then_some(Action::Quit);
    }
    Some(match key.code {
        KeyCode::Up | KeyCode::Char('k') => Action::Up,
        KeyCode::Down | KeyCode::Char('j') => Action::Down,
        KeyCode::PageUp => Action::PageUp,
        KeyCode::PageDown => Action::PageDown,
        KeyCode::Home | KeyCode::Char('g') => Action::First,
        KeyCode::End | KeyCode::Char('G') => Action::Last,
        KeyCode::Enter | KeyCode::Char('d') => Action::Open,
        KeyCode::Escape | KeyCode::Backspace => Action::Back,
        KeyCode::Left => Action::Previous,
        KeyCode::Right => Action::Next,
        KeyCode::Char('l') => Action::Sort(SortBy::Lag),
        KeyCode::Char('n') => Action::Sort(SortBy::Name),
        KeyCode::Char('b') => Action::Sort(SortBy::Bytes),
        KeyCode::Char('c') => Action::Sort(SortBy::Cause),
        KeyCode::Char('r') => Action::Reverse,
        KeyCode::Char('t') => Action::Span,
        KeyCode::Char('p' | ' ') => Action::Pause,
        KeyCode::Char('?' | 'h') | KeyCode::Function(1) => Action::Help,
        KeyCode::Tab => Action::Cluster,
        KeyCode::Char('q') => Action::Quit,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_one_meaning_each() {
        let plain = |code| action(KeyEvent::new(code, Modifiers::NONE));
        for (code, expected) in [
            (KeyCode::Up, Some(Action::Up)),
            (KeyCode::Char('k'), Some(Action::Up)),
            (KeyCode::Char('j'), Some(Action::Down)),
            (KeyCode::PageDown, Some(Action::PageDown)),
            (KeyCode::Home, Some(Action::First)),
            (KeyCode::End, Some(Action::Last)),
            (KeyCode::Enter, Some(Action::Open)),
            (KeyCode::Char('d'), Some(Action::Open)),
            (KeyCode::Escape, Some(Action::Back)),
            (KeyCode::Right, Some(Action::Next)),
            (KeyCode::Char('l'), Some(Action::Sort(SortBy::Lag))),
            (KeyCode::Char('n'), Some(Action::Sort(SortBy::Name))),
            (KeyCode::Char('b'), Some(Action::Sort(SortBy::Bytes))),
            (KeyCode::Char('c'), Some(Action::Sort(SortBy::Cause))),
            (KeyCode::Char('r'), Some(Action::Reverse)),
            (KeyCode::Char('t'), Some(Action::Span)),
            (KeyCode::Char(' '), Some(Action::Pause)),
            (KeyCode::Char('?'), Some(Action::Help)),
            (KeyCode::Char('q'), Some(Action::Quit)),
            (KeyCode::Char('Q'), None),
            (KeyCode::Tab, Some(Action::Cluster)),
        ] {
            assert_eq!(plain(code), expected, "{code:?}");
        }
        // A shifted letter comes with its modifier.
        let last = KeyEvent::new(KeyCode::Char('G'), Modifiers::SHIFT);
        assert_eq!(action(last), Some(Action::Last));
        let control = |c| action(KeyEvent::new(KeyCode::Char(c), Modifiers::CONTROL));
        assert_eq!(control('c'), Some(Action::Quit));
        assert_eq!(control('l'), None);
        let mut released = KeyEvent::new(KeyCode::Char('q'), Modifiers::NONE);
        released.kind = KeyEventKind::Release;
        assert_eq!(action(released), None);
    }
}
