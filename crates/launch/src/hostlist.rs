//! Lists of names as Slurm and its users write them: `n1,n2`, or `n[1-3,07],gpu1` (pure).

use keeptime_model::Invalid;

/// No cluster has more: a list of a few letters can stand for as many as it likes.
pub const HOSTS_MAX: usize = 65_536;
/// Lists of numbers in one name: rack, chassis and node are three, and each takes a call within another.
const BRACKETS_MAX: usize = 8;

/// The names that `list`, the value of `field`, stands for, in its order: numbers keep their leading zeros.
///
/// # Errors
/// If it is no such list, or stands for more than [`HOSTS_MAX`].
pub fn expanded(field: &str, list: &str) -> Result<Vec<String>, Invalid> {
    let invalid = || Invalid::new(field, list, "names of nodes, as in n1,n2 or n[1-3,07]");
    let mut names = Vec::new();
    for pattern in split_outside(list).ok_or_else(invalid)? {
        let more = expanded_one(pattern).filter(|more| names.len() + more.len() <= HOSTS_MAX);
        names.extend(more.ok_or_else(invalid)?);
    }
    Ok(names)
}

/// Parts between commas that are in no brackets.
fn split_outside(list: &str) -> Option<Vec<&str>> {
    let (mut parts, mut start, mut is_inside) = (Vec::new(), 0, false);
    for (at, letter) in list.char_indices() {
        match letter {
            '[' | ']' if is_inside == (letter == '[') => return None,
            '[' | ']' => is_inside = letter == '[',
            ',' if !is_inside => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[start..]);
    (!is_inside && parts.iter().all(|part| !part.is_empty())).then_some(parts)
}

/// A name with any number of lists of numbers in brackets, each of which stands for all its numbers.
fn expanded_one(pattern: &str) -> Option<Vec<String>> {
    if pattern.matches('[').count() > BRACKETS_MAX {
        return None;
    }
    let Some((before, rest)) = pattern.split_once('[') else { return Some(vec![pattern.into()]) };
    let (inside, after) = rest.split_once(']')?;
    let numbers: Vec<_> = inside.split(',').map(numbers).collect::<Option<_>>()?;
    let endings = expanded_one(after)?;
    let count = numbers.iter().map(Vec::len).sum::<usize>().checked_mul(endings.len())?;
    if count > HOSTS_MAX {
        return None;
    }
    let numbers = numbers.iter().flatten();
    let all = numbers.flat_map(|number| endings.iter().map(move |end| (number, end)));
    Some(all.map(|(number, end)| format!("{before}{number}{end}")).collect())
}

/// `7`, or `07-12`: as wide as the first is written.
fn numbers(range: &str) -> Option<Vec<String>> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
        text.parse::<u64>().ok().filter(|_| is_number)
    };
    let (from, to, width) = (number(first)?, number(last)?, first.len());
    let is_bounded = from <= to && to - from < HOSTS_MAX as u64;
    is_bounded.then(|| (from..=to).map(|number| format!("{number:0width$}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_list_stands_for_names_in_its_order() {
        for (list, expected) in [
            ("n1", "n1"),
            ("n3,n1", "n3 n1"),
            ("n[1-3,07]", "n1 n2 n3 n07"),
            ("n[08-11],gpu1", "n08 n09 n10 n11 gpu1"),
            ("rack[0-1]n[1,3]-ib", "rack0n1-ib rack0n3-ib rack1n1-ib rack1n3-ib"),
        ] {
            assert_eq!(expanded("nodes", list).unwrap().join(" "), expected, "{list}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused_and_none_is_too_long() {
        for list in [
            "",
            "n[1",
            "n1]",
            "n[[1]]",
            "n[3-1]",
            "n[a]",
            "n[-1]",
            "n[+1]",
            "n1,,n2",
            "n[1-99999999]",
            "n[1-50000],m[1-50000]",
            "n[0-999][0-999]",
        ] {
            let error = expanded("among", list).unwrap_err();
            assert_eq!((error.field.as_str(), error.value.as_deref()), ("among", Some(list)));
            assert!(error.expected.contains("n[1-3,07]"), "{list}: {error}");
        }
        assert_eq!(expanded("nodes", &"[1]".repeat(BRACKETS_MAX)).unwrap(), ["11111111"]);
        assert!(expanded("nodes", &"[1]".repeat(100_000)).is_err());
    }

    proptest! {
        #[test]
        fn any_list_ends_and_is_bounded(list in "[a-c0-3,\\[\\]-]{0,24}") {
            if let Ok(names) = expanded("nodes", &list) {
                prop_assert!(names.len() <= HOSTS_MAX);
                prop_assert!(names.iter().all(|name| !name.contains(['[', ']', ','])));
            }
        }
    }
}
