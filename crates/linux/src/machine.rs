//! What this machine is.

use std::fs;

/// The processor's model, as the kernel names it; nothing where it does not.
pub fn processor() -> Option<String> {
    model(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
}

fn model(cpuinfo: &str) -> Option<String> {
    let (_, name) = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':'))?;
    Some(name.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_read_or_not_there() {
        assert_eq!(model("processor : 0\nmodel name\t: Some CPU\n").as_deref(), Some("Some CPU"));
        assert_eq!(model("Hardware : board"), None);
    }
}
