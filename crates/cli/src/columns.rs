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
pub fn aligned<const COLUMNS: usize>(rows: &[[String; COLUMNS]], sides: [Side; COLUMNS]) -> String {
    let wide = |cell: &String| cell.chars().count();
    let widths: [usize; COLUMNS] = std::array::from_fn(|column| {
        rows.iter().map(|row| wide(&row[column])).max().unwrap_or_default()
    });
    let line = |row: &[String; COLUMNS]| {
        let cells = row.iter().zip(widths.into_iter().zip(sides));
        let cells = cells.map(|(cell, (width, side))| match side {
            Side::Left => format!("{cell:<width$}"),
            Side::Right => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}
