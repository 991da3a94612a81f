//! What this machine is.

use keeptime_model::units::BitsPerSecond;
use std::fs;

/// The processor's model, as the kernel names it; nothing where it does not.
pub fn processor() -> Option<String> {
    model(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
}

fn model(cpuinfo: &str) -> Option<String> {
    let (_, name) = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':'))?;
    Some(name.trim().to_string())
}

/// What a network device sends, as its driver says (the kernel's `Documentation/ABI/testing/sysfs-class-net`); nothing where
/// that is not known, as of many that are virtual, or of one without a link.
pub fn device_rate(name: &str) -> Option<BitsPerSecond> {
    rate(&fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok()?)
}

/// In Mbit/s; -1 is unknown, which older kernels write without its sign.
fn rate(speed: &str) -> Option<BitsPerSecond> {
    let mbit: u32 = speed.trim().parse().ok()?;
    (1..u32::MAX).contains(&mbit).then(|| BitsPerSecond::from_mbit(mbit.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_a_device_is_read_or_not_known() {
        assert_eq!(rate("25000\n"), Some(BitsPerSecond::from_mbit(25_000)));
        for unknown in ["-1\n", "0\n", "4294967295\n", ""] {
            assert_eq!(rate(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn the_model_is_read_or_not_there() {
        assert_eq!(model("processor : 0\nmodel name\t: Some CPU\n").as_deref(), Some("Some CPU"));
        assert_eq!(model("Hardware : board"), None);
    }
}
