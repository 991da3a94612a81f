//! What is asked for: `http://HOST:PORT/PATH`, with `{}` in the path where a file's rank goes.

use keeptime_model::Invalid;
use keeptime_random::Random;
use std::fmt;
use std::str::FromStr;

/// Most files that ranks are drawn from: one table entry each.
pub const FILES_MAX: u32 = 1_000_000;

/// One site, as its clients see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Name or address, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Path and query, from `/` on.
    pub path: String,
}

/// GET, or POST with so many bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Ask for a page.
    Get,
    /// Send so many bytes.
    Post(u32),
}

/// Which of many files is asked for: rank r with a chance proportional to 1 / r^exponent (Zipf).
#[derive(Debug, Clone, PartialEq)]
pub struct Zipf {
    /// The chance of each rank or one before it.
    cumulative: Vec<f64>,
}

impl Target {
    /// The path of the file with this rank.
    pub fn path_of(&self, rank: u32) -> String {
        self.path.replace("{}", &rank.to_string())
    }

    /// As the `Host` field says it.
    pub fn host_field(&self) -> String {
        let host =
            if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.port == 80 { host } else { format!("{host}:{}", self.port) }
    }
}

impl FromStr for Target {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let refuse =
            || Invalid::new("target", text, "http://HOST[:PORT][/PATH], as in http://10.0.0.1:80/");
        let rest = text.strip_prefix("http://").ok_or_else(refuse)?;
        let (authority, path) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None => (rest, "/"),
        };
        let is_plain = |text: &str| text.chars().all(|c| c.is_ascii_graphic());
        if !is_plain(path) || !is_plain(authority) || authority.contains(['@', '?', '#']) {
            return Err(refuse());
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or_else(refuse)?;
                (host, port.strip_prefix(':').or(port.is_empty().then_some("80")))
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, Some("80")),
            },
        };
        let port = port.and_then(|port| port.parse().ok()).filter(|port| *port > 0);
        match port {
            Some(port) if !host.is_empty() => {
                Ok(Self { host: host.into(), port, path: path.into() })
            }
            _ => Err(refuse()),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.host_field(), self.path)
    }
}

impl Zipf {
    /// Ranks from 1 to `files`.
    ///
    /// # Errors
    /// If there are no files or too many, or the exponent is not within 0 and 10.
    pub fn new(files: u32, exponent: f64) -> Result<Self, Invalid> {
        if !(1..=FILES_MAX).contains(&files) {
            return Err(Invalid::new("files", files, format!("1 to {FILES_MAX}")));
        }
        if !(0.0..=10.0).contains(&exponent) {
            return Err(Invalid::new("exponent", exponent, "0 to 10"));
        }
        let mut sum = 0.0;
        let weights = (1..=files).map(|rank| f64::from(rank).powf(-exponent));
        let mut cumulative: Vec<_> = weights
            .map(|weight| {
                sum += weight;
                sum
            })
            .collect();
        cumulative.iter_mut().for_each(|until| *until /= sum);
        Ok(Self { cumulative })
    }

    /// A rank by chance. `O(log files)`.
    pub fn rank(&self, random: &mut Random) -> u32 {
        let unit = random.part();
        let before = self.cumulative.partition_point(|until| *until <= unit);
        before.min(self.cumulative.len() - 1) as u32 + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn targets_read_back() {
        for text in ["http://shop/", "http://10.0.0.1:8080/a/{}.html?x=1", "http://[::1]:81/"] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
        assert_eq!("http://shop".parse::<Target>().unwrap().path, "/");
        for bad in
            ["shop", "https://shop/", "http:///x", "http://a:0/", "http://a b/", "http://[::1"]
        {
            assert_eq!(bad.parse::<Target>().unwrap_err().field, "target", "{bad}");
        }
    }

    #[test]
    fn ranks_follow_zipfs_law() {
        let zipf = Zipf::new(1_000, 1.0).unwrap();
        let mut random = Random::new(1);
        let mut counts = vec![0u32; 1_001];
        for _ in 0..1_000_000 {
            counts[zipf.rank(&mut random) as usize] += 1;
        }
        assert_eq!(counts[0], 0);
        let harmonic: f64 = (1..=1_000).map(|rank| 1.0 / f64::from(rank)).sum();
        for rank in [1, 2, 10, 100] {
            let expected = 1e6 / harmonic / f64::from(rank);
            let off = (f64::from(counts[rank as usize]) - expected).abs() / expected.sqrt();
            assert!(off < 5.0, "rank {rank}: {} for {expected}", counts[rank as usize]);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(http://)?\\PC{0,30}") {
            if let Ok(target) = text.parse::<Target>() {
                prop_assert!(target.path.starts_with('/'));
                prop_assert_eq!(target.to_string().parse::<Target>(), Ok(target));
            }
        }
    }
}
