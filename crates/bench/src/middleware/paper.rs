//! What the thesis has: Tables 4.1 and 4.2, and of its figures the numbers that the text tells.

use super::tasks::{Load, Renderer};

/// Improvements against no middleware, in percent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Improvement {
    /// Of one request.
    pub most: f64,
    /// Of all that were admitted.
    pub average: f64,
}

/// Interval, images of 512 in percent, interleaving factors of 0 in percent, greatest and average improvement.
const TABLE_1: [(u32, u32, u32, f64, f64); 15] = [
    (10, 50, 50, 34.45, 9.29),
    (20, 50, 50, 45.27, 7.48),
    (50, 50, 50, 43.23, 3.05),
    (10, 30, 50, 43.68, 13.68),
    (20, 30, 50, 52.57, 7.57),
    (50, 30, 50, 4.43, 0.39),
    (10, 70, 50, 31.30, 10.92),
    (20, 70, 50, 20.51, 5.72),
    (50, 70, 50, 3.57, 0.49),
    (10, 50, 30, 64.86, 17.53),
    (20, 50, 30, 17.23, 3.75),
    (50, 50, 30, 6.66, 0.559),
    (10, 50, 70, 39.76, 15.49),
    (20, 50, 70, 49.94, 11.04),
    (50, 50, 70, 6.86, 0.725),
];
/// Interval, seed, greatest and average improvement.
const TABLE_2: [(u32, u64, f64, f64); 4] =
    [(10, 1, 80.99, 43.06), (20, 1, 35.11, 11.80), (10, 2, 74.67, 37.25), (20, 2, 44.52, 13.48)];

/// Actual over requested, in percent, with its middleware: at most (the abstract).
pub const OVER_REQUESTED: f64 = 7.0;
/// Figure 4.16: by so much more without it at the shortest intervals.
pub const OVER_REQUESTED_WITHOUT: f64 = 117.0;
/// Integer sort on 4 nodes (Figures 4.1 and 4.6): MBps for each flow, seconds alone, and both at once.
pub const SORTS: [(f64, f64, f64); 2] = [(5.0, 0.1404, 0.1404), (8.0, 0.0925, 0.09175)];
/// MBps for each flow that are enough for the isosurface on 4 nodes, of a link of so many (Figure 4.1).
pub const ISOSURFACE: (f64, f64) = (15.0, 210.0);

/// The improvement of a load, where the thesis tells it.
pub fn improvement(load: &Load) -> Option<Improvement> {
    let found = |(most, average)| Improvement { most, average };
    match load.renderer {
        Renderer::Raycast => {
            let own = (load.interval_most, load.small, load.fine);
            let row = TABLE_1.iter().find(|row| (row.0, row.1, row.2) == own);
            row.map(|row| found((row.3, row.4)))
        }
        Renderer::Render => {
            let row = TABLE_2.iter().find(|row| (row.0, row.1) == (load.interval_most, load.seed));
            row.map(|row| found((row.2, row.3)))
        }
    }
}

/// The admission rate, in percent, where the text tells it: at very heavy loads "below" 40 and 60, at the
/// lightest "almost 100" of the polygon renderer alone.
pub fn admission(renderer: Renderer, interval_most: u32) -> Option<f64> {
    match (renderer, interval_most) {
        (Renderer::Raycast, 10) => Some(40.0),
        (Renderer::Render, 10) => Some(60.0),
        (Renderer::Render, 50) => Some(100.0),
        _ => None,
    }
}

/// Which figure shows the run times of a load, where the thesis draws it.
pub fn figure(load: &Load) -> Option<&'static str> {
    match (load.renderer, load.interval_most, load.small, load.fine) {
        (Renderer::Render, 10, ..) => Some("Figure 4.9"),
        (Renderer::Render, 20, ..) => Some("Figure 4.10"),
        (Renderer::Raycast, _, 50, 50) => Some("Figure 4.11"),
        (Renderer::Raycast, _, 30, 50) => Some("Figure 4.12"),
        (Renderer::Raycast, _, 70, 50) => Some("Figure 4.13"),
        (Renderer::Raycast, _, 50, 30) => Some("Figure 4.14"),
        _ => None,
    }
}
