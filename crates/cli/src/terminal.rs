//! What can be shown where output goes: a terminal that draws, one that prints only, or none at all.

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

fn can_draw(is_terminal: bool, term: Option<&OsStr>) -> bool {
    is_terminal && term != Some(OsStr::new("dumb"))
}

fn is_coloured(draws: bool, no_color: Option<&OsStr>) -> bool {
    draws && no_color.is_none_or(OsStr::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;

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
