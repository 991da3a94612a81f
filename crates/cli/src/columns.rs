//! Tables as text: columns as wide as what is in them, with two spaces between.

/// Where a cell stands in its column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// It begins where the column does.
    Left,
    /// It ends where the column does.
    Right,
}

/// A line for each of `rows`, of which the first may be headings. What is last in a line is followed by nothing.
/// A row has a cell for each of `sides`.
pub fn aligned<R: AsRef<[String]>>(rows: &[R], sides: &[Side]) -> String {
    let wide = |cell: &String| cell.chars().count();
    let width = |column: usize| rows.iter().map(|row| wide(&row.as_ref()[column])).max();
    let widths: Vec<_> = (0..sides.len()).map(|column| width(column).unwrap_or_default()).collect();
    let line = |row: &R| {
        let cells = row.as_ref().iter().zip(widths.iter().zip(sides));
        let cells = cells.map(|(cell, (&width, side))| match side {
            Side::Left => format!("{cell:<width$}"),
            Side::Right => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}
