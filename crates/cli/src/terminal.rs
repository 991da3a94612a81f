//! What can be shown where output goes: a terminal that draws, one that prints only, or none at all.

use ratatui::crossterm::terminal::size;
use std::env;
use std::ffi::OsStr;
use std::io::IsTerminal;

/// Whether the screen behind `stream` can be drawn on: a terminal, and none that calls itself dumb.
pub fn draws(stream: &impl IsTerminal) -> bool {
    can_draw(stream.is_terminal(), env::var_os("TERM").as_deref())
}

/// Whether colours are wanted on `stream`: on a terminal that has them, unless `NO_COLOR` is set. In files and pipes
/// they would be bytes that nobody can read.
pub fn has_colours(stream: &impl IsTerminal) -> bool {
    is_coloured(draws(stream), env::var_os("NO_COLOR").as_deref())
}

/// A table as standard output takes it: on a terminal lines end where that does, since what goes on in the next one is in no column;
/// files and programs have all of it.
pub fn fitted(table: String) -> String {
    match width() {
        Some(columns) => cut(&table, columns),
        None => table,
    }
}

/// How many columns standard output has; nothing where it is no terminal.
pub fn width() -> Option<usize> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    // One that does not say how wide it is says 0.
    let told = size().ok().map(|(columns, _)| usize::from(columns)).filter(|columns| *columns > 0);
    Some(told.unwrap_or(COLUMNS))
}

fn cut(table: &str, columns: usize) -> String {
    let line = |line: &str| {
        if line.chars().count() <= columns {
            return format!("{line}\n");
        }
        let kept: String = line.chars().take(columns.saturating_sub(1)).collect();
        format!("{}\u{2026}\n", kept.trim_end())
    };
    table.lines().map(line).collect()
}

fn can_draw(is_terminal: bool, term: Option<&OsStr>) -> bool {
    is_terminal && term != Some(OsStr::new("dumb"))
}

fn is_coloured(draws: bool, no_color: Option<&OsStr>) -> bool {
    draws && no_color.is_none_or(OsStr::is_empty)
}

/// Of terminals that do not say how wide they are.
const COLUMNS: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_where_the_terminal_does() {
        let table = "job  what\nr1   eight µ\nr2   more than that\n";
        assert_eq!(cut(table, 12), "job  what\nr1   eight µ\nr2   more t\u{2026}\n");
        assert_eq!(cut(table, 11), "job  what\nr1   eight\u{2026}\nr2   more\u{2026}\n");
    }

    #[test]
    fn nothing_is_drawn_where_nobody_would_see_it() {
        let term = |text| Some(OsStr::new(text));
        assert!(can_draw(true, term("xterm-256color")) && can_draw(true, None));
        assert!(!can_draw(true, term("dumb")) && !can_draw(false, term("xterm-256color")));
    }

    #[test]
    fn colours_are_for_those_who_want_them() {
        let no_color = |text| Some(OsStr::new(text));
        assert!(is_coloured(true, None) && is_coloured(true, no_color("")), "empty is not set");
        assert!(!is_coloured(true, no_color("1")) && !is_coloured(false, None));
    }
}
