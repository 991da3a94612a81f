//! Measures how well reservations are kept, and prints a table. Needs root:
//! `cargo run --release -p keeptime-linux --features testing --example enforcement [REPEATS]`
use keeptime_linux::testing::scenario::{Outcome, PAYLOAD_PART, Scenario, run};
use keeptime_model::units::BitsPerSecond;
use std::time::Duration;

fn main() -> Result<(), String> {
    let repeats = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(1);
    let mbit = BitsPerSecond::from_mbit;
    let scenario = |link, reserved: u64, is_sending, greedy| Scenario {
        link: mbit(link),
        reserved: Some(mbit(reserved)),
        is_sending,
        greedy,
        span: Duration::from_secs(3),
    };
    for _ in 0..repeats {
        for rate in [10, 50, 100, 200] {
            for greedy in [0, 4] {
                let Outcome { flow_mbit, .. } = run(&scenario(500, rate, true, greedy))?;
                let error = (flow_mbit / (rate as f64 * PAYLOAD_PART) - 1.0) * 100.0;
                println!(
                    "rate {rate} of 500, {greedy} greedy: {flow_mbit:.3} Mbit/s, {error:+.2} %"
                );
            }
        }
        for (link, rate) in [(100, 40), (200, 80)] {
            let alone = run(&scenario(link, rate, true, 0))?.flow_mbit;
            let among = run(&scenario(link, rate, true, 12))?;
            let kept = among.flow_mbit / alone * 100.0;
            let left = (link - rate) as f64 * PAYLOAD_PART;
            let used = among.greedy_mbit / left * 100.0;
            println!(
                "{rate} of {link}, 12 greedy: {kept:.2} % of alone, leftover used {used:.2} %"
            );
            let idle = run(&scenario(link, rate, false, 12))?.greedy_mbit;
            let used = idle / (link as f64 * PAYLOAD_PART) * 100.0;
            println!("{rate} of {link} reserved but idle, 12 greedy: {used:.2} % of the link used");
            let bare = Scenario { reserved: None, ..scenario(link, rate, true, 12) };
            println!("unprotected, 12 greedy: {:.2} Mbit/s of {link}", run(&bare)?.flow_mbit);
        }
    }
    Ok(())
}
