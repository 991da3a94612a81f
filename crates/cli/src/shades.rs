//! Amounts as blocks of text, one character each. Pure.

/// From nothing to all.
const SHADES: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// How much of `most` an amount is. Something is never shown as nothing.
pub fn shade(amount: u64, most: u64) -> char {
    let steps = SHADES.len() as u128 - 1;
    let step = (u128::from(amount) * steps).div_ceil(u128::from(most.max(1))).min(steps);
    SHADES[step as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_is_never_shown_as_nothing_nor_less_than_all_as_more() {
        let shades: String =
            [0, 1, 50, 99, 100, 200].map(|amount| shade(amount, 100)).iter().collect();
        assert_eq!(shades, " ▁▄███");
        assert_eq!([shade(0, 0), shade(1, 0), shade(u64::MAX, u64::MAX)], [' ', '█', '█']);
    }
}
